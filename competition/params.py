"""params.yaml -> one frozen, typed, strict tree. Every refusal names the key, what was found and what was expected."""

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as strict_dataclass

from competition.errors import Refusal

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
strict = strict_dataclass(frozen=True, config=STRICT)

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]  # becomes a folder


@strict
class CompetitionParams:
    name: Name
    adapter: Literal["digits", "flowers", "plants", "folder"]
    slug: str
    source: str
    image_size: Count
    validation: Literal["pool", "apart"]
    id_column: str
    label_column: str
    metric: str
    predicts: Literal["", "label", "probabilities"]
    miniature: Share


@strict
class Prepare:
    folds: Annotated[int, Field(ge=2, le=50)]
    seed: Count
    near_bits: Annotated[int, Field(ge=0, le=32)]
    near_pixels: Annotated[float, Field(ge=0, le=255)]
    bad_images: Literal["error", "drop"]
    label_conflicts: Literal["error", "drop", "keep"]
    shard_megabytes: Positive
    fit: Literal["squash", "crop"]


@strict
class CloudTpu:
    name: str
    zone: str
    project: str


@strict
class DeviceParams:
    backend: Literal["auto", "tensorflow", "jax"]
    require: Literal["any", "gpu", "tpu"]
    logical_devices: Count
    tpu: CloudTpu


@strict
class Train:
    seed: Count
    epochs: Positive
    batch: Positive
    learning_rate: AboveZero
    warmup: Share
    weight_decay: NonNegative
    clip_norm: NonNegative
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm_momentum: Annotated[float, Field(ge=0, lt=1)]
    flip: Literal["none", "horizontal", "both"]
    shift: Annotated[float, Field(ge=0, le=0.5)]
    zoom: Annotated[float, Field(ge=0, lt=1)]
    rotate: Annotated[float, Field(ge=0, le=180)]
    brightness: Annotated[float, Field(ge=0, le=1)]
    contrast: Annotated[float, Field(ge=0, lt=1)]
    saturation: Annotated[float, Field(ge=0, lt=1)]
    precision: Literal["auto", "float32", "bfloat16"]
    loop: Literal["auto", "custom", "fit"]
    steps_per_call: Positive
    accumulate: Positive
    ema: Annotated[float, Field(ge=0, lt=1)]
    focal_gamma: Annotated[float, Field(ge=0, le=10)]
    clip_value: NonNegative
    epsilon: AboveZero
    freeze_epochs: Count
    layer_decay: Annotated[float, Field(gt=0, le=1)]


@strict
class Interval:
    low: float
    high: float
    log: bool


@strict
class Tune:
    trials: Count
    folds: tuple[Count, ...]
    members: tuple[str, ...]
    seed: Count
    search: dict[str, Interval]


@strict
class Member:
    architecture: str
    image_size: Annotated[int, Field(ge=8, le=4096)]
    alpha: AboveZero
    weights: str
    train: Train


@strict
class Predict:
    batch: Positive
    views: Annotated[tuple[str, ...], Field(min_length=1)]


@strict
class Policy:
    method: Literal["identity", "mean", "greedy"]
    by: Literal["log_likelihood", "metric"]
    rounds: Positive
    cost_limit: NonNegative
    same_below: NonNegative


@strict
class Blend:
    methods: Annotated[tuple[str, ...], Field(min_length=1)]
    mixing: Literal["mean", "geometric", "rank"]
    temperature: bool
    rounds: Positive
    bags: Positive
    trials: Positive
    ridge: NonNegative
    seed: Count


@strict
class Decision:
    rules: Annotated[tuple[str, ...], Field(min_length=1)]
    passes: Positive
    shrink_rows: NonNegative


@strict
class Honest:
    resamples: Positive
    seed: Count


@strict
class Params:
    competition: CompetitionParams
    prepare: Prepare
    device: DeviceParams
    train: Train
    tune: Tune
    members: Annotated[dict[Name, Member], Field(min_length=1)]
    predict: Predict
    policy: Policy
    blend: Blend
    decision: Decision
    honest: Honest


@dataclass(frozen=True)
class Override:
    """One `key.path=value` of SET."""

    path: tuple[str, ...]
    value: Any


LARGEST_FILE = 1_000_000  # bytes; a params file is a page, not a data set


def load_params(path: Path, overrides: Sequence[Override] = ()) -> Params:
    """The tree of `path` (and of the file it extends), with the overrides put in, checked whole."""
    tree = _merged_with_base(_read_yaml(path), path)
    for override in overrides:
        _put(tree, override)
    _check_keys(tree, Params, path.name)
    for member in tree["members"].values():
        if isinstance(member, dict):
            member["train"] = {**tree["train"], **(member.get("train") or {})}
    try:
        params = TypeAdapter(Params).validate_json(json.dumps(tree))
    except ValidationError as error:
        raise Refusal(_first_sentence(error, path.name)) from None
    _check_between_fields(params, path.name)
    return params


def parse_overrides(text: str) -> list[Override]:
    """'train.epochs=3 predict.views=[identity]' -> overrides; values are read as YAML."""
    found = []
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        if not equals or not all(key.split(".")):
            raise Refusal(f"SET: {word!r} was found where key.path=value was expected, e.g. SET=\"train.epochs=3\"")
        found.append(Override(tuple(key.split(".")), _parse_yaml(value, f"SET {key}")))
    return found


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Refusal(f"{path}: no such file; PARAMS= names the parameters to use") from None
    if len(data) > LARGEST_FILE:
        raise Refusal(f"{path}: {len(data):,} bytes were found, at most {LARGEST_FILE:,} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    tree = _parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise Refusal(f"{path}: a mapping of blocks (competition:, train:, ...) was expected, {_kind(tree)} was found")
    return tree


def _parse_yaml(text: str, where: str) -> Any:
    # Anchors let a few bytes stand for gigabytes; no params file needs them.
    if re.search(r"(^|[\s,\[{:-])[&*][A-Za-z0-9_]", re.sub(r"#.*|\"[^\"]*\"|'[^']*'", "", text)):
        raise Refusal(f"{where}: YAML anchors and aliases (& and *) are not read here; write the value out")
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join((error.problem or str(error)).split())
        if "duplicate key" in problem and error.context_mark:
            line = f" line {mark.line + 1}" if mark else ""
        raise Refusal(f"{where}{line}: {problem}; expected YAML 1.2") from None
    except (YAMLError, ValueError) as error:
        raise Refusal(f"{where}: {' '.join(str(error).split())}; expected YAML 1.2") from None


def _merged_with_base(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """A recipe that `extends` another file states only what differs; its `members` and `tune.search` replace the base's."""
    base_name = tree.pop("extends", None)
    if base_name is None:
        return tree
    if not isinstance(base_name, str):
        raise Refusal(f"{path.name}.extends: {base_name!r} was found where a file's path was expected")
    base = _read_yaml(path.parent / base_name)
    if "extends" in base:
        raise Refusal(f"{base_name}: a file that is extended cannot extend another one")
    for block, values in tree.items():
        if block == "members" or not isinstance(values, dict) or not isinstance(base.get(block), dict):
            base[block] = values
        else:
            base[block] = {**base[block], **values}
    return base


def _put(tree: dict[str, Any], override: Override) -> None:
    """Set one value. `train.x` given by hand also wins over a member's own `x`."""
    place: Any = tree
    for key in override.path[:-1]:
        if isinstance(place, dict) and key == "train" and place is not tree and not isinstance(place.get(key), dict):
            place[key] = {}  # a member without a `train:` of its own
        if not isinstance(place, dict) or key not in place:
            known = list(place) if isinstance(place, dict) else []
            raise Refusal(f"SET {'.'.join(override.path)}: unknown key '{key}'{_did_you_mean(key, known)}")
        place = place[key]
    if not isinstance(place, dict):
        raise Refusal(f"SET {'.'.join(override.path)}: '{override.path[-2]}' is a value, not a block")
    place[override.path[-1]] = override.value
    if override.path[0] == "train" and len(override.path) == 2:
        for member in tree.get("members", {}).values():
            if isinstance(member, dict) and isinstance(member.get("train"), dict):
                member["train"].pop(override.path[1], None)


def _check_keys(tree: Any, expected: Any, where: str, partial: bool = False) -> None:
    """Unknown and missing keys of the whole tree, before values: a misspelt key is the commonest mistake."""
    if get_origin(expected) is Annotated:
        expected = get_args(expected)[0]
    if get_origin(expected) is dict and isinstance(tree, dict):
        for key, value in tree.items():
            _check_keys(value, get_args(expected)[1], f"{where}.{key}", partial)
        return
    if not is_dataclass(expected):
        return
    if not isinstance(tree, dict):
        raise Refusal(f"{where}: a block of keys was expected, {_kind(tree)} was found")
    known = [field.name for field in fields(expected)]
    for key in tree:
        if key not in known:
            raise Refusal(f"{where}.{key}: unknown key{_did_you_mean(str(key), known)}")
    hints = get_type_hints(expected, include_extras=True)
    for key in known:
        if key in tree:
            # A member's `train:` states only what differs from the common one.
            _check_keys(tree[key], hints[key], f"{where}.{key}", partial or (expected is Member and key == "train"))
        elif not partial and not (expected is Member and key == "train"):
            raise Refusal(f"{where}.{key}: missing; params.yaml in the project shows every key")


def _check_between_fields(params: Params, where: str) -> None:
    trainable = {field.name for field in fields(Train)}
    for name, interval in params.tune.search.items():
        if name not in trainable:
            raise Refusal(f"{where}.tune.search.{name}: not a key of train{_did_you_mean(name, sorted(trainable))}")
        if interval.low >= interval.high or (interval.log and interval.low <= 0):
            raise Refusal(f"{where}.tune.search.{name}: low {interval.low} and high {interval.high} are no interval")
    for name in params.tune.members:
        if name not in params.members:
            raise Refusal(f"{where}.tune.members: no member {name!r}{_did_you_mean(name, list(params.members))}")
    for fold in params.tune.folds:
        if fold >= params.prepare.folds:
            raise Refusal(f"{where}.tune.folds: fold {fold} was found, folds are 0 to {params.prepare.folds - 1}")


def _first_sentence(error: ValidationError, where: str) -> str:
    first = error.errors()[0]
    path = ".".join([where, *(str(part) for part in first["loc"])])
    found = json.dumps(first["input"], default=str)
    expected = first["msg"][0].lower() + first["msg"][1:]
    hint = ""
    if first["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        hint = _did_you_mean(str(first["input"]), choices)
    elif first["type"] == "string_pattern_mismatch":
        expected = "a name of letters, digits, '.', '_' and '-' was expected"
    return f"{path}: {found[:80]} was found; {expected}{hint}"


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known are {', '.join(known)}" if 0 < len(known) <= 30 else ""


def _kind(value: Any) -> str:
    names: Mapping[type, str] = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"{value!r}")
