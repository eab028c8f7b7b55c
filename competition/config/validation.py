"""Validation of a parameter tree: keys, types and ranges by pydantic, then the rules that involve several keys."""

import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from competition.config.params import Member, Params
from competition.config.plugins import active
from competition.config.search_space import endless_dimensions, search_problems, variants
from competition.config.suggestions import did_you_mean
from competition.config.yaml_text import kind

FROM_FILE = "from_file"  # architecture: the network itself is read from `weights`
WEIGHT_FILES = (".weights.h5", ".h5", ".keras")
ADAPTERS = ("digits", "flowers", "plants", "folder")  # the names of competition.data.adapters
LARGEST_TUNED = 3  # folds of tune.folds, where the parameters do not state them
MISSING = "missing"


class InvalidParameter(Exception):
    """A parameter that fails validation. `load_params` adds the file and the line and raises a UserError.

    keys: path of the parameter, e.g. ("train", "epochs") or ("tune", "folds", 1).  conflicts_with: path of another one
    that does not fit to it, which may be in another file.
    """

    def __init__(self, keys: Sequence[Any], problem: str, conflicts_with: Sequence[Any] = ()) -> None:
        self.keys, self.problem, self.conflicts_with = tuple(keys), problem, tuple(conflicts_with)


def validate(tree: dict[str, Any]) -> Params:
    """Convert a merged parameter tree to `Params`. `tree` is modified. Raises InvalidParameter."""
    _separate_external_members(tree)
    _require_text_keys(tree, ())
    _complete_member_train(tree)
    _complete_needs(tree.get("cluster"))
    try:
        params = TypeAdapter(Params).validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        raise _most_relevant(error) from None
    params = _with_tune_folds(params)
    _check_adapter(params.competition.adapter)
    _check_tune(params)
    _check_members(params)
    _check_blend_members(params)
    _check_needs(params)
    return params


def _with_tune_folds(params: Params) -> Params:
    """The parameters with tune.folds stated. [] becomes the first three folds, or fewer so that at least one remains.

    With two folds none would remain, and () stays: `make tune` then says that it does nothing.
    """
    if params.tune.folds:
        return params
    count = min(LARGEST_TUNED, params.prepare.folds - 1)
    return replace(params, tune=replace(params.tune, folds=tuple(range(count)) if count >= 2 else ()))


def _check_adapter(name: str) -> None:
    known = [*ADAPTERS, *active().adapters]
    if name not in known:
        raise InvalidParameter(
            ("competition", "adapter"), f"{name!r} was found; no adapter has this name{did_you_mean(name, known)}"
        )


def _separate_external_members(tree: dict[str, Any]) -> None:
    """Move members with `predictions` from `members` to `foreign`, a key that parameter files must not contain."""
    if "foreign" in tree:
        raise InvalidParameter(
            ("foreign",), "unknown key; a member with external predictions belongs under members, with predictions"
        )
    members = tree.get("members")
    if not isinstance(members, dict):
        members = {}
    external = {
        name: member for name, member in members.items() if isinstance(member, dict) and "predictions" in member
    }
    for name, member in external.items():
        for key in member:
            if key != "predictions":
                raise InvalidParameter(
                    ("members", name, key),
                    "not allowed together with predictions; a member is either trained here or has external predictions, "
                    "so remove one of the two",
                )
        del members[name]
    tree["foreign"] = {name: member["predictions"] for name, member in external.items()}


def _require_text_keys(tree: Any, keys: tuple[Any, ...]) -> None:
    """Reject keys such as 7 or true, which JSON would turn into text silently."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if not isinstance(key, str):
            raise InvalidParameter((*keys, key), f"the name {key!r} is not text; write it in quotes")
        _require_text_keys(value, (*keys, key))


def _complete_member_train(tree: dict[str, Any]) -> None:
    """Fill in each member's `train` from the common one. Values of a wrong type are left for pydantic to report."""
    common, members = tree.get("train"), tree.get("members")
    if not isinstance(common, dict) or not isinstance(members, dict):
        return
    for member in members.values():
        if isinstance(member, dict) and isinstance(member.get("train", {}), dict):
            member["train"] = {**common, **member.get("train", {})}


def _complete_needs(cluster: Any) -> None:
    """Fill in what each member needs from cluster.needs. Values of a wrong type are left for pydantic to report."""
    if not isinstance(cluster, dict) or not isinstance(cluster.get("needs"), dict):
        return
    members = cluster.get("members")
    if isinstance(members, dict):
        for name, needs in members.items():
            members[name] = {**cluster["needs"], **needs} if isinstance(needs, dict) else needs


def _most_relevant(error: ValidationError) -> InvalidParameter:
    """The first unknown key, else the first error: a misspelt key also causes errors about the key it replaces."""
    errors = error.errors()
    return _explained(next((one for one in errors if one["type"] == "unexpected_keyword_argument"), errors[0]))


def _explained(error: Any) -> InvalidParameter:
    """Convert one error of pydantic."""
    keys = [key for key in error["loc"] if key != "[key]"]
    if error["type"] == "unexpected_keyword_argument":
        return InvalidParameter(keys, f"unknown key{did_you_mean(str(keys[-1]), _sibling_keys(keys))}")
    if error["type"] in ("missing", "missing_argument"):
        return InvalidParameter(keys, MISSING)
    if error["type"] in ("dataclass_type", "dict_type"):
        return InvalidParameter(keys, f"{kind(error['input'])} was found; a block of keys was expected")
    expected, hint = error["msg"][0].lower() + error["msg"][1:], ""
    if error["type"] == "literal_error":
        hint = did_you_mean(str(error["input"]), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    elif error["type"] == "string_pattern_mismatch":
        expected = "a name of letters, digits, '.', '_' and '-' was expected"
    value = json.dumps(error["input"], default=str)
    return InvalidParameter(keys, f"{value[:80]} was found; {expected}{hint}")


def _sibling_keys(keys: Sequence[Any]) -> list[str]:
    """The valid keys of the block that contains the last of `keys`."""
    block: Any = Params
    for key in keys[:-1]:
        block = get_args(block)[1] if get_origin(block) is dict else get_type_hints(block)[key]
    names = [field.name for field in fields(block)]
    return [name for name in names if name != "foreign"] if block is Params else names


def _check_tune(params: Params) -> None:
    """Check `tune` against the members, folds and parameters that it names."""
    tune = params.tune
    for keys, problem in search_problems(tune.search):
        raise InvalidParameter(("tune", "search", *keys), problem)
    if tune.sampler == "grid":
        for key in endless_dimensions(tune.search):
            raise InvalidParameter(
                ("tune", "search", key), "an interval without step was found; tune.sampler: grid needs step or choices"
            )
    for position, name in enumerate(tune.members):
        if name in params.foreign:
            problem = f"{name!r} was found; a member with external predictions cannot be tuned"
            raise InvalidParameter(("tune", "members", position), problem)
        if name not in params.members:
            raise InvalidParameter(
                ("tune", "members", position), f"no member {name!r}{did_you_mean(name, params.members)}"
            )
    if not tune.trials:
        return
    if not tune.search:
        raise InvalidParameter(("tune", "search"), "{} was found; at least one parameter to search was expected")
    _check_tune_folds(params)
    for name, member in params.members.items():
        if not member.teacher and (not tune.members or name in tune.members):
            for variant in variants(member, tune.search):
                _check_variant(name, variant)


def _check_tune_folds(params: Params) -> None:
    tune = params.tune
    _check_folds(("tune", "folds"), tune.folds, params)
    if tune.folds and tune.trained_on == "tune_folds" and len(set(tune.folds)) < 2:
        raise InvalidParameter(
            ("tune", "folds"),
            f"{list(tune.folds)} was found; tune.trained_on: tune_folds needs at least two folds, because a trial is "
            "scored on each of them but the last and trained on the others",
        )
    if tune.pruner == "wilcoxon" and tune.folds and len(tune.folds) < 5:
        raise InvalidParameter(
            ("tune", "pruner"),
            f"wilcoxon was found, and tune.folds has {len(tune.folds)} folds; its test can reject a trial after four scored "
            "folds at the earliest, so it needs at least 5 folds; asha prunes within a fold",
        )


def _check_variant(name: str, variant: Member) -> None:
    """Raise InvalidParameter at tune.search if a member with searched values is not allowed."""
    try:
        _check_weights(name, variant)
        _check_probe(name, variant)
    except InvalidParameter as error:
        raise InvalidParameter(
            ("tune", "search"),
            f"member {name} with architecture {variant.architecture}, weights {variant.weights} and train.probe "
            f"{str(variant.train.probe).lower()} can be drawn, but {error.keys[-1]}: {error.problem}; `when` excludes it",
        ) from None


def _check_probe(name: str, member: Member) -> None:
    if member.train.probe and member.weights == "none":
        raise InvalidParameter(
            ("members", name, "weights"),
            "none was found; train.probe needs pretrained weights to start from",
            ("members", name, "train", "probe"),
        )


def _check_members(params: Params) -> None:
    """Check the teachers, external images, tuned folds and starting weights that members name."""
    if not params.members and not params.foreign:
        raise InvalidParameter(("members",), "{} was found; at least one member was expected")
    for name, member in params.members.items():
        for position, teacher in enumerate(member.teacher):
            keys = ("members", name, "teacher", position)
            if teacher == name:
                raise InvalidParameter(keys, f"{name!r} was found; a member cannot teach itself, name another member")
            if teacher in params.foreign:
                problem = f"{teacher!r} was found; a member with external predictions cannot be a teacher"
                raise InvalidParameter(keys, problem)
            if teacher not in params.members:
                candidates = [candidate for candidate in params.members if candidate != name]
                raise InvalidParameter(keys, f"no other member {teacher!r}{did_you_mean(teacher, candidates)}")
        _check_folds(("members", name, "tuned_folds"), member.tuned_folds, params)
        _check_weights(name, member)
        if not 8 <= member.training_size <= member.image_size:
            raise InvalidParameter(
                ("members", name, "train_size"),
                f"{member.train_size} was found; expected 0, or 8 to image_size, {member.image_size}, at which it predicts",
            )
        _check_probe(name, member)
        for position, source in enumerate(member.external):
            if source not in params.prepare.external:
                raise InvalidParameter(
                    ("members", name, "external", position),
                    f"{source!r} is not under prepare.external{did_you_mean(source, params.prepare.external)}",
                )
    in_training_order(params)
    _check_nested(params)


def _check_blend_members(params: Params) -> None:
    """Check that blend.members names members, or stored runs as member@digits, each once."""
    for position, name in enumerate(params.blend.members):
        keys, known = ("blend", "members", position), [*params.members, *params.foreign]
        if name in params.blend.members[:position]:
            raise InvalidParameter(keys, f"{name!r} was found twice; each member is listed once")
        if "@" in name:
            if not re.fullmatch(r"[^@]+@[0-9a-f]{4,64}", name):
                raise InvalidParameter(
                    keys, f"{name!r} was found; a run is named member@digits, as listed by `make runs`: cnn@1a2b3c4d"
                )
        elif name not in known:
            raise InvalidParameter(keys, f"no member {name!r}{did_you_mean(name, known)}")


def _check_needs(params: Params) -> None:
    """Check that cluster.members names members that are trained here."""
    for name in params.cluster.members:
        if name not in params.members:
            raise InvalidParameter(
                ("cluster", "members", name), f"no member {name!r}{did_you_mean(name, params.members)}"
            )


def _check_weights(name: str, member: Member) -> None:
    """Check what can be seen without reading the file: a misspelt word, and words that the architecture does not have."""
    weights, keys = member.weights, ("members", name, "weights")
    if "://" in weights and not weights.startswith("gs://"):
        raise InvalidParameter(
            keys, f"{weights!r} was found; download it, and state the path of the file or folder, or a gs:// address"
        )
    is_word = weights in ("none", "imagenet")
    if not is_word and "/" not in weights and not weights.endswith(WEIGHT_FILES) and not Path(weights).is_dir():
        hint = did_you_mean(weights, ("none", "imagenet")).partition("; known are")[0]
        raise InvalidParameter(
            keys,
            f"{weights!r} was found; expected none, imagenet, a {' or '.join(WEIGHT_FILES)} file or the folder of a "
            f"KerasHub preset{hint}",
        )
    if member.architecture == FROM_FILE and is_word:
        raise InvalidParameter(
            keys,
            f"{weights} was found; architecture {FROM_FILE} needs a .keras file or the folder of a KerasHub preset",
        )
    if weights == "imagenet" and (member.architecture == "cnn" or member.architecture in active().models):
        raise InvalidParameter(
            keys,
            f"imagenet was found; there are no ImageNet weights of {member.architecture}, expected none or a .weights.h5 "
            "file",
        )
    if member.normalise != "auto" and member.architecture != FROM_FILE:
        raise InvalidParameter(
            ("members", name, "normalise"),
            f"{member.normalise} was found; only architecture {FROM_FILE} takes another value than auto",
        )


def _check_folds(keys: tuple[str, ...], folds: Sequence[int], params: Params) -> None:
    for position, fold in enumerate(folds):
        if fold >= params.prepare.folds:
            problem = f"fold {fold} was found, folds are 0 to {params.prepare.folds - 1}"
            raise InvalidParameter((*keys, position), problem, ("prepare", "folds"))


def _check_nested(params: Params) -> None:
    """Nested teachers are trained without two folds; a nested student among them would need models without three."""
    for name, member in params.members.items():
        if not member.teacher or member.teacher_scheme == "same_fold":
            continue
        keys = ("members", name, "teacher_scheme")
        if params.prepare.folds < 3:
            raise InvalidParameter(
                keys, f"nested was found; it needs 3 folds or more, and prepare.folds is {params.prepare.folds}"
            )
        for teacher in ancestors(params, name):
            if params.members[teacher].teacher and params.members[teacher].teacher_scheme == "nested":
                raise InvalidParameter(
                    keys,
                    f"nested was found, and its teacher {teacher} is a nested student itself, which would need models without "
                    "three folds; set teacher_scheme to same_fold for one of them",
                )


def nested_teachers(params: Params) -> set[str]:
    """Names of the members that need models trained without two folds."""
    students = [name for name, member in params.members.items() if member.teacher and member.teacher_scheme == "nested"]
    return {teacher for student in students for teacher in ancestors(params, student)}


def ancestors(params: Params, name: str) -> list[str]:
    """Names of a member's direct and indirect teachers, in training order."""
    order = in_training_order(params)
    teachers: set[str] = set()
    for member in reversed(order):
        if member == name or member in teachers:
            teachers |= set(params.members[member].teacher)
    return [member for member in order if member in teachers]


def in_training_order(params: Params) -> list[str]:
    """Names of the members, teachers before their students. Raises InvalidParameter for a cycle."""
    order: list[str] = []
    while len(order) < len(params.members):
        pending = [name for name in params.members if name not in order]
        ready = [name for name in pending if set(params.members[name].teacher) <= set(order)]
        if not ready:
            raise InvalidParameter(
                ("members", pending[0], "teacher"),
                "teachers and students form a cycle; remove the teacher of one of them",
            )
        order += ready
    return order
