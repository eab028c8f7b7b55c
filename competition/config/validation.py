"""Validation of a parameter tree: keys, types and ranges by pydantic, then the rules that involve several keys.

What one key names must exist, and what two state must fit together.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from competition.config.errors import InvalidParameter, Key, did_you_mean
from competition.config.params import FROM_FILE, HUB, REMOVED, TIMM, ExternalFiles, Member, Params, Train
from competition.config.plugins import Plugins
from competition.config.search_space import search_problems, variants
from competition.config.secrets import is_secret
from competition.config.teachers import in_training_order
from competition.config.yaml_text import Tree, kind

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

LARGEST_TUNED = 2  # folds of tune.folds, where the parameters do not state them
MISSING = "missing"
Keys = tuple[Key, ...]
Problem = tuple[Keys, str] | tuple[Keys, str, Keys]  # the arguments of InvalidParameter
WEIGHT_FILES = (".weights.h5", ".h5", ".keras")
ARCHITECTURES = (  # of keras.applications and competition.training.model, without importing Keras
    "cnn", "ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtSmall", "ConvNeXtTiny", "ConvNeXtXLarge", "DenseNet121", "DenseNet169",
    "DenseNet201", "EfficientNetB0", "EfficientNetB1", "EfficientNetB2", "EfficientNetB3", "EfficientNetB4", "EfficientNetB5",
    "EfficientNetB6", "EfficientNetB7", "EfficientNetV2B0", "EfficientNetV2B1", "EfficientNetV2B2", "EfficientNetV2B3",
    "EfficientNetV2L", "EfficientNetV2M", "EfficientNetV2S", "InceptionResNetV2", "InceptionV3", "MobileNet", "MobileNetV2",
    "MobileNetV3Large", "MobileNetV3Small", "NASNetLarge", "NASNetMobile", "ResNet101", "ResNet101V2", "ResNet152",
    "ResNet152V2", "ResNet50", "ResNet50V2", "VGG16", "VGG19", "Xception",
)  # fmt: skip
# Width multipliers with ImageNet weights; the other architectures have one width.
PRETRAINED_WIDTHS = {"MobileNet": (0.25, 0.5, 0.75, 1.0), "MobileNetV2": (0.35, 0.5, 0.75, 1.0, 1.3, 1.4)}
ADAPTERS = ("digits", "noisy_digits", "flowers", "plants", "folder")  # the names of competition.prepare.adapters


def validate(tree: Tree, plugins: Plugins) -> Params:
    """Convert a merged parameter tree to `Params`, with the plugins of its file. `tree` is modified. Raises InvalidParameter."""
    # Members with `predictions` go to `external`, a key that parameter files must not contain.
    if "external" in tree:
        place = "a member with external predictions belongs under members, with predictions"
        raise InvalidParameter(("external",), f"unknown key; {place}")
    # The others get what their `train` lacks from the common one. Values of a wrong type are left for pydantic to report.
    members, common, cluster, external = tree.get("members"), tree.get("train"), tree.get("cluster"), {}
    for name, member in list(members.items()) if isinstance(members, dict) else ():
        if isinstance(member, dict) and "predictions" in member:
            if others := [key for key in member if key != "predictions"]:
                raise InvalidParameter(
                    ("members", name, others[0]),
                    "not allowed together with predictions; a member is either trained here or has external predictions, "
                    "so remove one of the two",
                )
            external[name] = tree["members"].pop(name)["predictions"]
        elif isinstance(member, dict) and isinstance(common, dict) and isinstance(member.get("train", {}), dict):
            member["train"] = {**common, **member.get("train", {})}
    tree["external"] = external
    # What a member needs of a machine is completed from cluster.needs.
    needs, needing = (cluster.get("needs"), cluster.get("members")) if isinstance(cluster, dict) else (None, None)
    if isinstance(needs, dict) and isinstance(needing, dict):
        for name, own in needing.items():
            needing[name] = {**needs, **own} if isinstance(own, dict) else own
    try:
        params = replace(TypeAdapter(Params).validate_json(json.dumps(tree), strict=True), plugins=plugins)
    except ValidationError as error:
        errors = error.errors()
        # The first unknown key, else the first error: a misspelt key also causes errors about the key it replaces.
        raise _explained(next((e for e in errors if e["type"] == "unexpected_keyword_argument"), errors[0])) from None
    if not params.tune.folds:
        # With two folds none would remain, and () stays: `make tune` then says that it does nothing.
        count = min(LARGEST_TUNED, params.prepare.folds - 1)
        params = replace(params, tune=replace(params.tune, folds=tuple(range(count)) if count >= 2 else ()))
    for rules in (_tune_problems, _member_problems, _name_problems):
        for problem in rules(params):
            raise InvalidParameter(*problem)
    return params


def _explained(error: "ErrorDetails") -> InvalidParameter:
    """Convert one error of pydantic."""
    keys = tuple(key for key in error["loc"] if key != "[key]")
    if error["type"] == "unexpected_keyword_argument":
        name = str(keys[-1])
        if name in REMOVED.get(str(keys[-2]) if len(keys) > 1 else "", ()):
            return InvalidParameter(keys, "this parameter was removed; remove the line")
        blocks = {block: schema for block, schema in get_type_hints(Params).items() if is_dataclass(schema)}
        del blocks["plugins"]  # a path in the file
        blocks |= {"members.NAME": Member, "members.NAME.predictions": ExternalFiles}
        elsewhere = [f"{block}.{name}" for block, schema in blocks.items() if name in {f.name for f in fields(schema)}]
        # Of external predictions only their own keys are meant.
        is_elsewhere = len(elsewhere) == 1 and keys[0] != "external"
        block: Any = Params  # that contains the key
        for key in keys[:-1]:
            block = get_args(block)[1] if get_origin(block) is dict else get_type_hints(block)[str(key)]
            if NoneType in get_args(block):  # a block that may be absent: Head | None
                (block,) = (one for one in get_args(block) if one is not NoneType)
        siblings = [field.name for field in fields(block) if field.name != "external" or block is not Params]
        siblings += ["predictions"] if block is Member else []  # of an external member (`validate`)
        is_plural = f"{name}s" in siblings  # blend.method is blend.methods, although there is policy.method
        # A training parameter that stands directly in a member belongs into its train block.
        owner = ".".join(map(str, keys[:-1]))
        trained = {f.name: f"'{owner}.train.{f.name}'" for f in fields(Train) if block is Member}
        if name in trained and not is_plural:
            hint = f"; did you mean {trained[name]}?"
        elif is_elsewhere and not is_plural:
            hint = f"; did you mean '{elsewhere[0]}'?"
        else:
            hint = did_you_mean(name, [*siblings, *trained]) or did_you_mean(name, siblings)
            hint = re.sub(r"'(\w+)'", lambda match: trained.get(match[1], match[0]), hint)
        return InvalidParameter(keys, f"unknown key{hint}")
    if error["type"] in ("missing", "missing_argument"):
        return InvalidParameter(keys, MISSING)
    if error["type"] in ("dataclass_type", "dict_type"):
        return InvalidParameter(keys, f"{kind(error['input'])} was found; a block of keys was expected")
    expected, hint = error["msg"][0].lower() + error["msg"][1:], ""
    if error["type"] == "literal_error":
        hint = did_you_mean(str(error["input"]), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    elif error["type"] == "tuple_type":
        expected = "a list was expected, such as "
        expected += f"[{error['input']}]" if isinstance(error["input"], str) and not is_secret(keys) else "[a, b]"
    elif error["type"] == "string_pattern_mismatch":
        expected = "a name of letters, digits, '.', '_' and '-' was expected"
    value = "a value" if is_secret(keys) else json.dumps(error["input"], default=str)[:80]
    return InvalidParameter(keys, f"{value} was found; {expected}{hint}")


def _unknown(keys: Keys, names: Iterable[tuple[Key, str]], known: Collection[str], noun: str) -> Iterator[Problem]:
    """Names below `keys` that are not among the `known` ones.  names: (last key, name).  noun: what has such a name."""
    for key, name in names:
        if name not in known:
            yield (*keys, key), f"no {noun} {name!r}{did_you_mean(name, known)}"


def _name_problems(params: Params) -> Iterator[Problem]:
    """The adapter, the column of groups, and the members that blend.members (or stored runs) and cluster.members name."""
    adapter = ("adapter", params.competition.adapter)
    yield from _unknown(("competition",), [adapter], [*ADAPTERS, *params.plugins.adapters], "adapter")
    prepare = params.prepare
    if (prepare.group_by == "column") != bool(prepare.group_column):
        problem = (
            f"{prepare.group_by} was found and prepare.group_column is {prepare.group_column!r}; set both (group_by=column and "
            "the name of a column) or neither"
        )
        yield ("prepare", "group_by"), problem, ("prepare", "group_column")
    keys, blended = ("blend", "members"), params.blend.members
    members = [(position, name) for position, name in enumerate(blended) if "@" not in name]
    yield from _unknown(keys, members, [*params.members, *params.external], "member")
    for position, name in enumerate(blended):
        if name in blended[:position]:
            yield (*keys, position), f"{name!r} was found twice; each member is listed once"
        elif "@" in name and not re.fullmatch(r"[^@]+@[0-9a-f]{4,64}", name):
            problem = "a run is named member@digits, as listed by `make runs`: cnn@1a2b3c4d"
            yield (*keys, position), f"{name!r} was found; {problem}"
    needing = params.cluster.members
    yield from _unknown(("cluster", "members"), zip(needing, needing), params.members, "member")


def _tune_problems(params: Params) -> Iterator[Problem]:
    """What `tune` states against the members, folds and parameters that it names."""
    tune, folds = params.tune, ("tune", "folds")
    for keys, problem in search_problems(tune.search, is_grid=tune.sampler == "grid"):
        yield ("tune", "search", *keys), problem
    yield from _unknown(("tune", "members"), enumerate(tune.members), params.members, "member")
    if not tune.trials:
        return
    if not tune.search:
        yield ("tune", "search"), "{} was found; at least one parameter to search was expected"
    yield from _fold_problems(folds, tune.folds, params)
    if tune.folds and len(set(tune.folds)) < 2:
        yield (
            folds,
            f"{list(tune.folds)} was found; two folds or more were expected, because a trial is scored on each of them but the last and "
            "trained on the others",
        )
    for name, member in params.members.items():
        if not member.teacher and (not tune.members or name in tune.members):
            for variant in variants(member, tune.search):
                for key, problem in _network_problems(variant, params.plugins):
                    yield (
                        ("tune", "search"),
                        f"member {name} with architecture {variant.architecture}, weights {variant.weights} and train.probe "
                        f"{str(variant.train.probe).lower()} can be drawn, but {key}: {problem}; `when` excludes it",
                    )


def _member_problems(params: Params) -> Iterator[Problem]:
    """The teachers, external images, tuned folds and starting weights that members name."""
    if not params.members and not params.external:
        yield ("members",), "{} was found; at least one member was expected"
    for name, member in params.members.items():
        keys, others = ("members", name), [other for other in params.members if other != name]
        yield from _unknown((*keys, "teacher"), enumerate(member.teacher), others, "other member")
        yield from _fold_problems((*keys, "tuned_folds"), member.tuned_folds, params)
        if not 8 <= member.training_size <= member.image_size:
            sizes = f"expected 0, or 8 to image_size, {member.image_size}, at which it predicts"
            yield (*keys, "train_size"), f"{member.train_size} was found; {sizes}"
        yield from (((*keys, key), problem) for key, problem in _network_problems(member, params.plugins))
        if member.head is not None:
            if member.teacher:
                yield (*keys, "teacher"), "a teacher was found; a member with a head is fitted to labels alone"
            yield from _unknown((*keys, "head", "also"), enumerate(member.head.also), others, "other member")
        external = enumerate(member.external)
        yield from _unknown((*keys, "external"), external, params.prepare.external, "folder of prepare.external")
    in_training_order(params)  # raises InvalidParameter for a cycle


def _fold_problems(keys: Keys, folds: tuple[int, ...], params: Params) -> Iterator[Problem]:
    for position, fold in enumerate(folds):
        if fold >= params.prepare.folds:
            problem = f"fold {fold} was found, folds are 0 to {params.prepare.folds - 1}"
            yield (*keys, position), problem, ("prepare", "folds")


def _network_problems(member: Member, plugins: Plugins) -> Iterator[tuple[str, str]]:
    """(key of the member, problem) of its architecture and weights, as far as they can be judged without reading a file."""
    architecture, weights = member.architecture, member.weights
    known = [*ARCHITECTURES, FROM_FILE, *plugins.models]
    is_word, is_hub, is_timm = weights in ("none", "imagenet"), weights.startswith(HUB), architecture.startswith(TIMM)
    if member.normalise != "auto" and architecture != FROM_FILE:
        yield "normalise", f"{member.normalise} was found; only architecture {FROM_FILE} takes another value than auto"
    if is_timm:  # frozen, and its weights are in a format that runs no code
        if member.head is None:
            problem = "a network of timm is not trained here; give the member a head, or train it in timm"
            yield "architecture", f"{architecture} was found; {problem} (docs/external_predictions.md)"
        if not is_word and not weights.endswith(".safetensors"):
            yield "weights", f"{weights!r} was found; expected imagenet, none or a .safetensors file"
        return
    if architecture not in known:
        expected = f"expected {ARCHITECTURES[0]}, {FROM_FILE}, {TIMM}NAME, a name in keras.applications or in MODELS of the plugins"
        yield "architecture", f"{architecture!r} was found; {expected}{did_you_mean(architecture, known)}"
    if is_hub and (architecture != FROM_FILE or not re.fullmatch(r"\w+", weights.removeprefix(HUB))):
        yield "weights", f"{weights!r} was found; {HUB}NAME is a preset of KerasHub and needs architecture {FROM_FILE}"
    is_path = "/" in weights or weights.endswith(WEIGHT_FILES) or Path(weights).is_dir()
    if not is_word and not is_hub and (not is_path or weights.startswith(("http://", "https://"))):
        expected = f"none, imagenet, {HUB}NAME, or the path or gs:// address of a {' or '.join(WEIGHT_FILES)} file"
        hint = did_you_mean(weights, ("none", "imagenet")).partition("; known are")[0]
        yield "weights", f"{weights!r} was found; expected {expected} or of the folder of a KerasHub preset{hint}"
    if architecture == FROM_FILE and is_word:
        source = f"architecture {FROM_FILE} needs a .keras file, the folder of a KerasHub preset, or {HUB}NAME"
        yield "weights", f"{weights} was found; {source}"
    if weights == "imagenet" and (architecture == "cnn" or architecture in plugins.models):
        expected = f"there are no ImageNet weights of {architecture}, expected none or a .weights.h5 file"
        yield "weights", f"imagenet was found; {expected}"
    widths = PRETRAINED_WIDTHS.get(architecture, ())
    if weights == "imagenet" and widths and member.alpha not in widths:
        existing = f"ImageNet weights of {architecture} exist for {', '.join(map(str, widths))}"
        yield "alpha", f"{member.alpha:g} was found; {existing}"
    if member.train.probe and weights == "none":
        problem = "train.probe needs pretrained weights to start from: state them, or train.probe: false"
        yield "weights", f"`none`, weights drawn at random, was found; {problem}"
