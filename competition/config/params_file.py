"""params.yaml, recipes and SET -> Params. Every error names the file, line and key, the value and what was expected."""

import os
import re
from collections.abc import Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from competition.config.digests import to_plain
from competition.config.errors import InvalidParameter, Key, UserError, did_you_mean
from competition.config.params import REMOVED, Head, Member, Params, Train
from competition.config.plugins import NO_PLUGINS, load_plugins
from competition.config.secrets import is_secret, words_of_set
from competition.config.validation import MISSING, validate
from competition.config.yaml_text import Tree, line_of, parse_yaml, read_text, read_yaml

# Path below work/<competition> of the parameter file that a budget (HOURS=, BUDGET=) writes: it has the members that the budget
# chose, and the values of SET, so that it needs no SET when it is used later.
BUDGET_FILE = Path("budget", "params.yaml")

# A value outside brackets that goes on behind a comma with another parameter, or ends in a comma.
SEPARATED = re.compile(rf"^[^\[{{].*[,;](?:$|(?:{'|'.join(field.name for field in fields(Params))})\.[\w.]+=)")


@dataclass(frozen=True)
class Override:
    """One `key.path=value` of SET: a value that replaces the one in the parameter files."""

    path: tuple[str, ...]  # ("train", "epochs")
    value: object  # as read from YAML


def load_params(path: Path, overrides: Sequence[Override] = ()) -> Params:
    """Read a parameter file and the files that it extends, apply the overrides and validate the result.

    The names of architectures, metrics and adapters that its plugins define are valid values.
    Raises UserError for the first wrong value: its file, line and key, the value, what was expected, the most similar valid key.
    """
    try:
        tree = _merged(_read_with_bases(path))
        _apply(tree, overrides)
        file = tree.get("plugins")
        try:  # a value of a wrong type is left for `validate` to report
            plugins = load_plugins(Path(file)) if file and isinstance(file, str) else NO_PLUGINS
        except UserError as error:
            raise InvalidParameter(("plugins",), str(error)) from error
        return validate(tree, plugins)
    except InvalidParameter as error:
        raise _located(error, path, overrides) from None


def _located(error: InvalidParameter, path: Path, overrides: Sequence[Override]) -> UserError:
    """The error for the user: where the parameter is stated, what is wrong, and where a value that conflicts with it is stated."""
    files = _read_with_bases(path)  # read again: validation completes the trees in place
    keys, problem, other_keys = error.keys, error.problem, error.conflicts_with
    if keys[0] == "external" and len(keys) > 1:  # external.x.oof of Params is members.x.predictions.oof in the file
        keys = ("members", keys[1], "predictions", *keys[2:])
    if problem == MISSING and keys[0] == "members" and len(keys) == 3:
        members: Tree = next((tree["members"] for tree in files.values() if isinstance(tree.get("members"), dict)), {})
        # Without PARAMS= the project's own file is read, whose members are not those of the user's file.
        is_default = path.name == "params.yaml" and path.parts[-2:] != BUDGET_FILE.parts
        is_default = is_default and any(one.path[:2] == keys[:2] for one in overrides)
        problem += "; a new member needs architecture, image_size, alpha and weights"
        problem += " (params.yaml is read: is PARAMS= missing?)" * is_default + did_you_mean(str(keys[1]), members)
    elif problem == MISSING and keys[0] != "members":
        problem += "; state it, or let the file begin with `extends:` and the path of the project's params.yaml, which has every key"
    place = locate(path, keys, overrides)
    other_place = locate(path, other_keys, overrides) if other_keys else ""
    is_in_another_file = other_place and other_place.split()[0] != place.split()[0]
    return UserError(f"{place}: {problem}{f' ({other_place})' if is_in_another_file else ''}")


def file_tree(params: Params) -> Tree:
    """Return `params` as plain values in the form of a parameter file; `validate` makes the same parameters of it.

    Members with external predictions, which `Params` keeps under `external`, are under `members` with the key `predictions`.
    """
    tree = to_plain(params)
    external = {name: {"predictions": files} for name, files in tree.pop("external").items()}
    return {**tree, "members": {**tree["members"], **external}}


def stated_keys(block: Member | Train | Head) -> dict[str, Any]:
    """A member as a mapping, without the optional keys at their default: a new optional key leaves earlier digests alone."""
    values = {key.name: getattr(block, key.name) for key in fields(block)}
    stated = {key.name for key in fields(block) if key.default is NO_DEFAULT or values[key.name] != key.default}
    return {
        key: stated_keys(value) if isinstance(value, Train | Head) else value
        for key, value in values.items()
        if key in stated
    }


def recorded_keys(member: Member) -> dict[str, Any]:
    """The stated keys of a member as a fold model records them: with the defaults of the parameters that were removed.

    So a fold model that was trained with such a default stays current.
    """
    stated = stated_keys(member)
    return {**stated, "train": {**REMOVED["train"], **stated["train"]}}


def parse_overrides(text: str) -> list[Override]:
    """Parse SET, e.g. 'train.epochs=3 predict.views=[identity, flip_lr]': shell words with YAML values."""
    # A blank or an open quote may have cut a secret into parts, so no part of SET with a secret is shown.
    keys = [word.strip("'\"").partition("=")[0].split(".") for word in text.split()]
    has_secret = any(map(is_secret, keys))
    try:
        words = words_of_set(text)
    except ValueError as error:
        shown = "a text" if has_secret else repr(text)
        raise UserError(f"SET: {shown} cannot be read ({str(error).lower()}); close the quotes") from None
    overrides = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not all(key.split(".")) or SEPARATED.search(value):
            raise UserError(
                f"SET: {'a text' if has_secret else repr(word)} was found where key.path=value was expected, e.g. "
                'SET="train.epochs=3 train.batch=32"; separate the parameters by blanks, with none around the =, and put a value that '
                "contains blanks in quotes"
            )
        overrides.append(Override(tuple(key.split(".")), parse_yaml(value, f"SET {key}") if value else ""))
    return overrides


def locate(path: Path, keys: Sequence[Key], overrides: Sequence[Override] = ()) -> str:
    """Return the place where a parameter is stated, for messages: 'SET train.epochs' or 'flowers.yaml line 34: train.epochs'.

    keys: of the parameter, such as ("train", "epochs").
    An override of SET comes first. Else the files are searched from the one at `path` through those that it extends, and the
    first that states block and key is named: its value is the one that counts. Below `members` it is the first file that has
    members, because they replace those of its base. If no file states the key, because it is missing, the first file with
    the block is named, or else the one at `path`.
    """
    dotted = ".".join(map(str, keys))
    if any(all(a == b for a, b in zip(override.path, keys, strict=False)) for override in overrides):
        return f"SET {dotted}"
    files = _read_with_bases(path)
    in_files = any(states(tree, keys[:2]) for tree in files.values())
    in_set = [override.path[:2] for override in overrides]
    if keys[:1] == ("members",) and not in_files and tuple(keys[:2]) in in_set:  # a new member, perhaps a misspelt name
        return f"SET {dotted}"
    deciding = 1 if keys[:1] == ("members",) else 2  # the number of keys of which the nearest statement counts
    stating = [file for depth in (deciding, 1) for file, tree in files.items() if states(tree, keys[:depth])]
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
    """Merge a file with the files that it extends: key by key in each block, but `members` replace those of the base as a whole.

    Names that the members lack are removed from tune.members of a file farther than theirs. If none is left, tune.trials is 0, so
    nothing is tuned, unless a file nearer than that one states tune.trials.
    """
    merged: Tree = {}
    for file, tree in reversed(files.items()):
        if tree.get("plugins") and isinstance(tree["plugins"], str):  # relative to the file that states it
            tree = {**tree, "plugins": str(file.parent / Path(os.path.expanduser(tree["plugins"])))}
        for block, values in tree.items():
            if block != "members" and isinstance(values, dict) and isinstance(merged.get(block), dict):
                merged[block] = {**merged[block], **values}
            else:
                merged[block] = values
    tune, members = merged.get("tune"), merged.get("members")
    tuned = tune.get("members") if isinstance(tune, dict) else None
    if isinstance(members, dict) and isinstance(tuned, list) and tuned:
        trees = list(files.values())  # nearest first
        blocks = [tree["tune"] if isinstance(tree.get("tune"), dict) else {} for tree in trees]
        naming = next(number for number, block in enumerate(blocks) if "members" in block)
        if naming > next(number for number, tree in enumerate(trees) if "members" in tree):
            names = [name for name in tuned if name in members]
            is_off = not names and not any("trials" in block for block in blocks[:naming])
            merged["tune"] = {**merged["tune"], "members": names, **({"trials": 0} if is_off else {})}
    return merged


def _apply(tree: Tree, overrides: Sequence[Override]) -> None:
    """Set the values, in new blocks where a block does not exist. `train.x` of SET also replaces a member's own `train.x`."""
    for override in overrides:
        block, path = tree, override.path
        for depth, key in enumerate(path[:-1], 1):
            if block.get(key) is None:  # `validate` refuses unknown keys, and a new member that lacks some
                block[key] = {}
            block = block[key]
            if not isinstance(block, dict):
                raise InvalidParameter(path, f"{'.'.join(path[:depth])} is a value, not a block of keys")
        block[path[-1]] = override.value
        members = tree.get("members")
        if path[0] == "train" and len(path) == 2 and isinstance(members, dict):
            for member in members.values():
                if isinstance(member, dict) and isinstance(member.get("train"), dict):
                    member["train"].pop(path[1], None)
