"""Rules of params.yaml that involve several keys: what one key names must exist, and what two state must fit together."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from competition.config.errors import InvalidParameter, counted
from competition.config.params import FROM_FILE, Member, Params
from competition.config.plugins import active
from competition.config.search_space import endless_dimensions, search_problems, variants
from competition.config.suggestions import did_you_mean
from competition.config.teachers import check_nested, in_training_order

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
ADAPTERS = ("digits", "flowers", "plants", "folder")  # the names of competition.prepare.adapters


def check_rules(params: Params) -> None:
    """Raise InvalidParameter for the first rule that is broken."""
    _check_adapter(params.competition.adapter)
    prepare = params.prepare
    if (prepare.group_by == "column") != bool(prepare.group_column):
        raise InvalidParameter(
            ("prepare", "group_by"),
            f"{prepare.group_by} was found and prepare.group_column is {prepare.group_column!r}; set both (group_by=column and "
            "the name of a column) or neither",
            ("prepare", "group_column"),
        )
    _check_tune(params)
    _check_members(params)
    _check_blend_members(params)
    for name in params.cluster.members:
        _require_member(("cluster", "members", name), name, params.members)


def _check_adapter(name: str) -> None:
    known = [*ADAPTERS, *active().adapters]
    if name not in known:
        raise InvalidParameter(
            ("competition", "adapter"), f"{name!r} was found; no adapter has this name{did_you_mean(name, known)}"
        )


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
        _require_member(("tune", "members", position), name, params.members)
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
            f"wilcoxon was found, and tune.folds has {counted(len(tune.folds), 'fold')}; its test can reject a trial after four scored "
            "folds at the earliest, so it needs at least 5 folds; asha prunes within a fold",
        )


def _check_variant(name: str, variant: Member) -> None:
    """Raise InvalidParameter at tune.search if a member with searched values is not allowed."""
    try:
        _check_architecture(name, variant)
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
        _check_architecture(name, member)
        _check_weights(name, member)
        if not 8 <= member.training_size <= member.image_size:
            raise InvalidParameter(
                ("members", name, "train_size"),
                f"{member.train_size} was found; expected 0, or 8 to image_size, {member.image_size}, at which it predicts",
            )
        _check_probe(name, member)
        _check_head(name, member, params)
        for position, source in enumerate(member.external):
            if source not in params.prepare.external:
                raise InvalidParameter(
                    ("members", name, "external", position),
                    f"{source!r} is not under prepare.external{did_you_mean(source, params.prepare.external)}",
                )
    in_training_order(params)
    check_nested(params)


def _check_head(name: str, member: Member, params: Params) -> None:
    """Check what a frozen-feature member names, and refuse what only a trained network can have."""
    head = member.head
    if head is None:
        return
    if member.teacher:
        raise InvalidParameter(
            ("members", name, "teacher"), "a teacher was found; a member with a head is fitted to labels alone"
        )
    for position, other in enumerate(head.also):
        keys = ("members", name, "head", "also", position)
        if other == name:
            raise InvalidParameter(keys, f"{name!r} was found; its own features are always used, name another member")
        _require_member(keys, other, params.members)


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
        else:
            _require_member(keys, name, known)


def _require_member(keys: Sequence[Any], name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InvalidParameter(keys, f"no member {name!r}{did_you_mean(name, known)}")


def _check_architecture(name: str, member: Member) -> None:
    known = [*ARCHITECTURES, FROM_FILE, *active().models]
    if member.architecture not in known:
        hint = did_you_mean(member.architecture, known)
        raise InvalidParameter(
            ("members", name, "architecture"),
            f"{member.architecture!r} was found; expected {ARCHITECTURES[0]}, {FROM_FILE}, a name in keras.applications or in MODELS "
            f"of the plugins{hint}",
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
    widths = PRETRAINED_WIDTHS.get(member.architecture, ())
    if weights == "imagenet" and widths and member.alpha not in widths:
        raise InvalidParameter(
            ("members", name, "alpha"),
            f"{member.alpha:g} was found; ImageNet weights of {member.architecture} exist for {', '.join(map(str, widths))}",
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
