"""params.yaml, recipes and SET -> Params. Every error names the file, line and key, the value and what was expected."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields
from pathlib import Path

from competition.config.digests import to_plain
from competition.config.errors import InvalidParameter, Key, UserError, did_you_mean
from competition.config.params import Member, Params
from competition.config.plugins import NO_PLUGINS, activate, load_plugins
from competition.config.secrets import is_secret
from competition.config.validation import MISSING, validate
from competition.config.yaml_text import Tree, line_of, parse_yaml, read_text, read_yaml

# Below work/<competition>: the parameters that a budget ended with. The file states what SET stated.
BUDGET_FILE = Path("budget", "params.yaml")


@dataclass(frozen=True)
class Override:
    """One `key.path=value` of SET."""

    path: tuple[str, ...]
    value: object


def load_params(path: Path, overrides: Sequence[Override] = ()) -> Params:
    """Read a parameter file and the files it extends, apply the overrides and validate the result.

    Its plugins become the active ones (`plugins.active`) before the names that they may define are checked.
    Raises UserError: file, line, key, value, what was expected, the most similar valid key.
    """
    try:
        tree = _merged(files := _read_with_bases(path))
        _add_members(tree, overrides)
        for override in overrides:
            _apply(tree, override)
        plugins = tree.get("plugins")
        try:  # a value of a wrong type is left for `validate` to report
            activate(load_plugins(Path(plugins)) if plugins and isinstance(plugins, str) else NO_PLUGINS)
        except UserError as error:
            raise InvalidParameter(("plugins",), str(error)) from error
        return validate(tree)
    except InvalidParameter as error:
        keys, problem, others = error.keys, error.problem, error.conflicts_with
        if keys[0] == "foreign" and len(keys) > 1:  # foreign.x.oof is members.x.predictions.oof in the file
            keys = ("members", keys[1], "predictions", *keys[2:])
        if problem == MISSING:
            is_of_member, has_base = keys[0] == "members" and len(keys) > 1, len(files) > 1
            if is_of_member and has_base:
                problem += (
                    "; the members of a file replace those of the file it extends, so state every key of the member"
                )
            elif is_of_member or has_base:  # a recipe's members are never completed by its base
                problem += "; params.yaml in the project shows every key"
            else:
                problem += (
                    "; state it, or let the file begin with `extends: ../params.yaml` (the path of the project's "
                    "params.yaml), which gives every key that the file does not state"
                )
        place = locate(path, keys, overrides)
        if others[:1] == ("members",) and not any(states(tree, others) for tree in _read_with_bases(path).values()):
            others = others[2:]  # a value of `train` that all members have in common
        other = locate(path, others, overrides) if others else ""
        is_elsewhere = other and other.split()[0] != place.split()[0]  # in another file
        raise UserError(f"{place}: {problem}{f' ({other})' if is_elsewhere else ''}") from None


def file_tree(params: Params) -> Tree:
    """Return the tree of a parameter file from which `load_params` reads the same parameters."""
    tree = to_plain(params)
    external = {name: {"predictions": files} for name, files in tree.pop("foreign").items()}
    return {**tree, "members": {**tree["members"], **external}}


def parse_overrides(text: str) -> list[Override]:
    """Parse SET, e.g. 'train.epochs=3 predict.views="[identity, flip_lr]"': shell words with YAML values."""
    # A blank or an open quote may have cut a secret into parts, so no part of SET with a secret is shown.
    keys = [word.strip("'\"").partition("=")[0].split(".") for word in text.split()]
    has_secret = any(map(is_secret, keys))
    try:
        words = shlex.split(text)
    except ValueError as error:
        shown = "a text" if has_secret else repr(text)
        raise UserError(f"SET: {shown} cannot be read ({str(error).lower()}); close the quotes") from None
    overrides = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not all(key.split(".")):
            raise UserError(
                f'SET: {"a text" if has_secret else repr(word)} was found where key.path=value was expected, e.g. SET="train.epochs=3"; '
                "put a value that contains blanks in quotes"
            )
        overrides.append(Override(tuple(key.split(".")), parse_yaml(value, f"SET {key}") if value else ""))
    return overrides


def locate(path: Path, keys: Sequence[Key], overrides: Sequence[Override] = ()) -> str:
    """Where a parameter is stated: 'SET train.epochs' or 'flowers.yaml line 34: train.epochs'.

    Named is the file that the value comes from: of the file and those it extends, the first that states the key of the
    block, or the members. If none does, the first that states the block.
    """
    dotted = ".".join(map(str, keys))
    if any(override.path == tuple(keys[: len(override.path)]) for override in overrides):
        return f"SET {dotted}"
    files = _read_with_bases(path)
    merged = 1 if keys[:1] == ("members",) else 2  # members are replaced together, other blocks key by key
    stating = [file for depth in (merged, 1) for file, tree in files.items() if states(tree, keys[:depth])]
    file = next(iter([*stating, *files]))
    depth, line = line_of(read_text(file), keys)
    return f"{file.name} line {line}: {dotted}" if depth else f"{file.name}: {dotted}"


def states(tree: object, keys: Sequence[Key]) -> bool:
    """Return True if the tree has a value at these keys."""
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    return True


def _read_with_bases(path: Path) -> dict[Path, Tree]:
    """The file and the files that it extends, nearest first, each without its `extends`."""
    trees: dict[Path, Tree] = {}
    while True:
        tree = read_yaml(path)
        base = tree.pop("extends", None)
        trees[path] = tree
        if base is None:
            return trees
        if not isinstance(base, str):
            raise UserError(f"{path.name}.extends: {base!r} was found where a file's path was expected")
        if not (path.parent / base).is_file():
            beside = [(Path(base).parent / file.name).as_posix() for file in (path.parent / base).parent.glob("*.y*ml")]
            raise UserError(f"{path.name}: extends: {base}: no such file{did_you_mean(base, beside)}")
        path = path.parent / base
        if path.resolve() in [file.resolve() for file in trees]:
            chain = " -> ".join(file.name for file in (*trees, path))
            raise UserError(f"extends: {chain} is a cycle; remove `extends` from one of these files")


def _merged(files: dict[Path, Tree]) -> Tree:
    """A file states only what differs from its base, key by key in each block; `members` replaces the base's members.

    Members that the base tunes are then no longer tuned; if the file has none of them and does not state tune.members or
    tune.trials itself, nothing is tuned.
    """
    merged: Tree = {}
    for file, tree in reversed(files.items()):
        if tree.get("plugins") and isinstance(tree["plugins"], str):  # relative to the file that states it
            tree = {**tree, "plugins": str(file.parent / Path(os.path.expanduser(tree["plugins"])))}
        tune, members = merged.get("tune"), tree.get("members")
        if isinstance(tune, dict) and isinstance(members, dict) and isinstance(tune.get("members"), list):
            names = [name for name in tune["members"] if name in members]
            if tune["members"]:
                merged["tune"] = {**tune, "members": names, **({} if names else {"trials": 0})}
        for block, values in tree.items():
            if block != "members" and isinstance(values, dict) and isinstance(merged.get(block), dict):
                merged[block] = {**merged[block], **values}
            else:
                merged[block] = values
    return merged


def _add_members(tree: Tree, overrides: Sequence[Override]) -> None:
    """Add an empty member for each new name of which the overrides state `predictions` or all required keys.

    A name with fewer keys is more likely misspelt, and stays unknown.
    """
    required = {field.name for field in fields(Member) if field.default is NO_DEFAULT} - {"train"}
    stated: dict[str, set[str]] = {}
    for override in overrides:
        if override.path[0] == "members" and len(override.path) > 2:
            stated.setdefault(override.path[1], set()).add(override.path[2])
    members = tree.get("members")
    for name, keys in stated.items():
        if isinstance(members, dict) and ("predictions" in keys or keys >= required):
            members.setdefault(name, {})


def _apply(tree: Tree, override: Override) -> None:
    """Set one value. `train.x` of SET also replaces a member's own `train.x`."""
    block: Tree = tree
    for depth, key in enumerate(override.path[:-1]):
        optional = depth == 2 and override.path[0] == "members" and key in ("train", "predictions")
        if optional and isinstance(block, dict) and not isinstance(block.get(key), dict):
            block[key] = {}
        if not isinstance(block, dict) or key not in block:
            new_member = override.path[0] == "members" and depth == 1
            hint = "; a new member needs architecture, image_size, alpha and weights" if new_member else ""
            suggestion = did_you_mean(key, block if isinstance(block, dict) else ())
            raise InvalidParameter(override.path, f"unknown key '{key}'{suggestion}{hint}")
        block = block[key]
        if not isinstance(block, dict):
            parent = ".".join(override.path[: depth + 1])
            raise InvalidParameter(override.path, f"{parent} is a value, not a block of keys")
    block[override.path[-1]] = override.value
    members = tree.get("members")
    if override.path[0] == "train" and len(override.path) == 2 and isinstance(members, dict):
        for member in members.values():
            if isinstance(member, dict) and isinstance(member.get("train"), dict):
                member["train"].pop(override.path[1], None)
