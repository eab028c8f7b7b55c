"""params.yaml -> Params. Every user_error names the file, the line and the key, what was found and what was expected."""

import difflib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from competition.artifacts.manifest import to_plain
from competition.config.errors import UserError
from competition.config.params import Member, Params, Train
from competition.config.yaml_text import kind, line_of, parse_yaml, read_text, read_yaml


@dataclass(frozen=True)
class Override:
    """One `key.path=value` of SET."""

    path: tuple[str, ...]
    value: Any


COMPILED_IN = ("dropout", "norm_momentum")  # what a trial cannot change without building the model again


class _Wrong(Exception):
    """Something wrong at `keys`; where that stands in which file is looked up once, when it is told."""

    def __init__(self, keys: Sequence[Any], problem: str) -> None:
        self.keys, self.problem = tuple(keys), problem


def load_params(path: Path, overrides: Sequence[Override] = ()) -> Params:
    """The tree of `path` (and of the file it extends), with the overrides put in, checked whole.

    Raises UserError: file, line, key path, what was found, what was expected, the nearest right key.
    """
    try:
        return _checked(_merged_with_base(read_yaml(path), path), overrides)
    except _Wrong as wrong:
        raise UserError(f"{_place(path, _as_written(wrong.keys), overrides)}: {wrong.problem}") from None


def _checked(tree: dict[str, Any], overrides: Sequence[Override]) -> Params:
    for override in overrides:
        _put(tree, override)
    _set_foreign_apart(tree)
    _check_keys(tree, Params, ())
    for member in tree["members"].values():
        member["train"] = {**tree["train"], **member.get("train", {})}
    try:
        params = TypeAdapter(Params).validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        raise _first_wrong(error) from None
    _check_search(params)
    _check_members(params)
    return params


def file_tree(params: Params) -> dict[str, Any]:
    """The parameters as a file has them: what `load_params` reads back as the same."""
    tree = to_plain(params)
    foreign = {name: {"predictions": files} for name, files in tree.pop("foreign").items()}
    return {**tree, "members": {**tree["members"], **foreign}}


def _set_foreign_apart(tree: dict[str, Any]) -> None:
    """A member with `predictions` is not trained here: it goes to `foreign`, which no file says itself."""
    if "foreign" in tree:
        raise _Wrong(("foreign",), "unknown key; a member made elsewhere stands under members, with predictions")
    members = tree.get("members")
    if not isinstance(members, dict):
        members = {}
    brought = {name: made for name, made in members.items() if isinstance(made, dict) and "predictions" in made}
    for name, made in brought.items():
        for key in made:
            if key != "predictions":
                raise _Wrong(
                    ("members", name, key),
                    "stands beside predictions; a member is trained here or made elsewhere, so one of the two must go",
                )
        del members[name]
    tree["foreign"] = {name: made["predictions"] for name, made in brought.items()}


def _as_written(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """foreign.x.oof -> members.x.predictions.oof"""
    return ("members", keys[1], "predictions", *keys[2:]) if keys[0] == "foreign" and len(keys) > 1 else keys


def parse_overrides(text: str) -> list[Override]:
    """'train.epochs=3 predict.views="[identity, flip_lr]"' -> overrides; words as in a shell, values as in YAML."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"SET: {text!r} cannot be read ({str(error).lower()}); close the quotes") from None
    found = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not all(key.split(".")):
            raise UserError(
                f'SET: {word!r} was found where key.path=value was expected, e.g. SET="train.epochs=3"; '
                "a value with blanks stands in quotes"
            )
        found.append(Override(tuple(key.split(".")), parse_yaml(value, f"SET {key}") if value else ""))
    return found


def _place(path: Path, keys: Sequence[Any], overrides: Sequence[Override]) -> str:
    """Where a value was said, as a person looks for it: 'SET train.epochs' or 'params.yaml line 34: train.epochs'."""
    dotted = ".".join(map(str, keys))
    if any(override.path == tuple(keys[: len(override.path)]) for override in overrides):
        return f"SET {dotted}"
    base = read_yaml(path).get("extends")
    files = [path, path.parent / base] if isinstance(base, str) else [path]
    found = [(*line_of(read_text(file), keys), file) for file in files]
    depth, line, file = max(found, key=lambda one: one[0])  # the file that says most of it; the recipe before its base
    return f"{file.name} line {line}: {dotted}" if depth else f"{file.name}: {dotted}"


def _merged_with_base(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """A recipe that `extends` another file states only what differs; its `members` and `tune.search` stand alone."""
    base_name = tree.pop("extends", None)
    if base_name is None:
        return tree
    if not isinstance(base_name, str):
        raise UserError(f"{path.name}.extends: {base_name!r} was found where a file's path was expected")
    base = read_yaml(path.parent / base_name)
    if "extends" in base:
        raise UserError(f"{base_name}: a file that is extended cannot extend another one")
    for block, values in tree.items():
        if block == "members" or not isinstance(values, dict) or not isinstance(base.get(block), dict):
            base[block] = values
        else:
            base[block] = {**base[block], **values}
    return base


def _put(tree: dict[str, Any], override: Override) -> None:
    """Set one value. `train.x` given by hand also wins over a member's own `x`."""
    place: Any = tree
    for depth, key in enumerate(override.path[:-1]):
        if isinstance(place, dict) and key == "train" and place is not tree and not isinstance(place.get(key), dict):
            place[key] = {}  # a member without a `train:` of its own
        if not isinstance(place, dict) or key not in place:
            known = list(place) if isinstance(place, dict) else []
            raise _Wrong(override.path, f"unknown key '{key}'{_did_you_mean(key, known)}")
        place = place[key]
        if not isinstance(place, dict):
            raise _Wrong(override.path, f"{'.'.join(override.path[: depth + 1])} is a value, not a block")
    place[override.path[-1]] = override.value
    members = tree.get("members")
    if override.path[0] == "train" and len(override.path) == 2 and isinstance(members, dict):
        for member in members.values():
            if isinstance(member, dict) and isinstance(member.get("train"), dict):
                member["train"].pop(override.path[1], None)


def _check_keys(tree: Any, expected: Any, where: tuple[Any, ...], partial: bool = False) -> None:
    """Unknown and missing keys of the whole tree, before values: a misspelt key is the commonest mistake."""
    if get_origin(expected) is Annotated:
        expected = get_args(expected)[0]
    if get_origin(expected) is dict and isinstance(tree, dict):
        for key, value in tree.items():
            if not isinstance(key, str):
                raise _Wrong((*where, key), f"the name {key!r} is no text; write it in quotes")
            _check_keys(value, get_args(expected)[1], (*where, key), partial)
        return
    if not is_dataclass(expected) and get_origin(expected) is not dict:
        return
    if not isinstance(tree, dict):
        raise _Wrong(where, f"{kind(tree)} was found; a block of keys was expected")
    known = [field.name for field in fields(expected)]
    for key in tree:
        if key not in known:
            raise _Wrong((*where, key), f"unknown key{_did_you_mean(str(key), known)}")
    hints = get_type_hints(expected, include_extras=True)
    optional = {field.name for field in fields(expected) if field.default is not MISSING}
    for key in known:
        if key in tree:
            # A member's `train:` states only what differs from the common one.
            _check_keys(tree[key], hints[key], (*where, key), partial or (expected is Member and key == "train"))
        elif key not in optional and not partial and not (expected is Member and key == "train"):
            raise _Wrong((*where, key), "missing; params.yaml in the project shows every key")


def _check_search(params: Params) -> None:
    """What ranges alone cannot say: `tune` speaks of members, folds and keys that must exist elsewhere."""
    tune, hints = params.tune, get_type_hints(Train, include_extras=True)
    trainable = [key for key, hint in hints.items() if float in (hint, *get_args(hint)) and key not in COMPILED_IN]
    for name, interval in tune.search.items():
        keys = ("tune", "search", name)
        if name not in trainable:
            raise _Wrong(keys, f"not a number of train that a trial can change{_did_you_mean(name, trainable)}")
        if interval.low >= interval.high or (interval.log and interval.low <= 0):
            raise _Wrong(keys, f"low {interval.low} and high {interval.high} are no interval")
        for end in ("low", "high"):
            try:
                TypeAdapter(hints[name]).validate_python(getattr(interval, end))
            except ValidationError as error:
                raise _Wrong((*keys, end), _first_wrong(error).problem) from None
    for place, name in enumerate(tune.members):
        if name in params.foreign:
            problem = f"{name!r} was found; only a member that is trained here can be tuned"
            raise _Wrong(("tune", "members", place), problem)
        if name not in params.members:
            raise _Wrong(("tune", "members", place), f"no member {name!r}{_did_you_mean(name, list(params.members))}")
    for place, fold in enumerate(tune.folds if tune.trials else ()):
        if fold >= params.prepare.folds:
            raise _Wrong(("tune", "folds", place), f"fold {fold} was found, folds are 0 to {params.prepare.folds - 1}")
    if tune.trials and not tune.folds:
        raise _Wrong(("tune", "folds"), "[] was found; a trial needs a fold to be scored on")
    if tune.trials and tune.trained_on == "tune_folds" and len(set(tune.folds)) < 2:
        raise _Wrong(
            ("tune", "folds"),
            f"{list(tune.folds)} was found; with tune.trained_on: tune_folds a trial needs two folds or more, one to be "
            "scored on and the others to be trained on",
        )


def _check_members(params: Params) -> None:
    """A member can learn from members that are trained before it, and from external images that are named."""
    if not params.members and not params.foreign:
        raise _Wrong(("members",), "{} was found; at least one member was expected")
    for name, member in params.members.items():
        for place, teacher in enumerate(member.teacher):
            where = ("members", name, "teacher", place)
            if teacher == name:
                raise _Wrong(where, f"{name!r} was found; a member cannot teach itself, name another member")
            if teacher in params.foreign:
                raise _Wrong(where, f"{teacher!r} was found; only a member that is trained here can be a teacher")
            if teacher not in params.members:
                others = [other for other in params.members if other != name]
                raise _Wrong(where, f"no other member {teacher!r}{_did_you_mean(teacher, others)}")
        for place, fold in enumerate(member.tuned_folds):
            if fold >= params.prepare.folds:
                raise _Wrong(
                    ("members", name, "tuned_folds", place),
                    f"fold {fold} was found, folds are 0 to {params.prepare.folds - 1}",
                )
        if member.train.probe and member.weights == "none":
            raise _Wrong(
                ("members", name, "weights"), "none was found; train.probe needs pretrained weights to start from"
            )
        for place, source in enumerate(member.external):
            if source not in params.prepare.external:
                known = list(params.prepare.external)
                raise _Wrong(
                    ("members", name, "external", place),
                    f"{source!r} is not under prepare.external{_did_you_mean(source, known)}",
                )
    in_training_order(params)
    _check_nested(params)


def _check_nested(params: Params) -> None:
    """Nested teachers are trained without two folds; a nested scheme among their own teachers would take a third."""
    for name, member in params.members.items():
        if not member.teacher or member.teacher_scheme == "same_fold":
            continue
        if params.prepare.folds < 3:
            raise _Wrong(
                ("members", name, "teacher_scheme"),
                f"nested was found; it needs 3 folds or more, and prepare.folds is {params.prepare.folds}",
            )
        for teacher in ancestors(params, name):
            if params.members[teacher].teacher and params.members[teacher].teacher_scheme == "nested":
                raise _Wrong(
                    ("members", name, "teacher_scheme"),
                    f"nested was found, and its teacher {teacher} is a nested student itself, which would need models without "
                    "three folds; set teacher_scheme to same_fold for one of them",
                )


def nested_teachers(params: Params) -> set[str]:
    """Members of which models without two folds are trained."""
    students = [name for name, member in params.members.items() if member.teacher and member.teacher_scheme == "nested"]
    return {teacher for name in students for teacher in ancestors(params, name)}


def ancestors(params: Params, name: str) -> list[str]:
    """A member's teachers, their teachers and so on, in training order."""
    wanted: set[str] = set()
    for one in reversed(in_training_order(params)):
        if one == name or one in wanted:
            wanted |= set(params.members[one].teacher)
    return [one for one in in_training_order(params) if one in wanted]


def in_training_order(params: Params) -> list[str]:
    """Names of the members, teachers before their pupils."""
    done: list[str] = []
    while len(done) < len(params.members):
        ready = [
            name for name, member in params.members.items() if name not in done and set(member.teacher) <= set(done)
        ]
        if not ready:
            stuck = next(name for name in params.members if name not in done)
            raise _Wrong(
                ("members", stuck, "teacher"), "teachers and pupils form a circle; one of them must learn without"
            )
        done += ready
    return done


def _first_wrong(error: ValidationError) -> _Wrong:
    first = error.errors()[0]
    found = json.dumps(first["input"], default=str)
    expected = first["msg"][0].lower() + first["msg"][1:]
    hint = ""
    if first["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        hint = _did_you_mean(str(first["input"]), choices)
    elif first["type"] == "string_pattern_mismatch":
        expected = "a name of letters, digits, '.', '_' and '-' was expected"
    keys = [part for part in first["loc"] if part != "[key]"]
    return _Wrong(keys, f"{found[:80]} was found; {expected}{hint}")


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    known = [name for name in known if name != word]  # the given word is never the answer
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known are {', '.join(known)}" if 0 < len(known) <= 30 else ""
