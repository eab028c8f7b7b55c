"""Build a member's network: images (B, H, W, 3) of 0..255 -> logits (B, C) float32, preprocessing included.

The network of a regression returns values (B, 1) in the unit of the targets.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from competition.config.errors import MissingWeights, UserError
from competition.config.params import FROM_FILE, TIMM, Member
from competition.config.plugins import NO_PLUGINS, Plugins
from competition.ensemble.metrics import TargetKind
from competition.input_pipeline.named_augmentations import checked_augmentation, is_on_device
from competition.storage import files
from competition.training.backend import Tensor
from competition.training.device_augmentation import DeviceAugmentation
from competition.training.pretrained_file import NORMALISATIONS, backbone_from_file, normalised

# Networks of keras.applications -> key of NORMALISATIONS; those not listed here scale inside their own graph.
# Source: keras.applications.imagenet_utils.preprocess_input and each family's preprocess_input.
NORMALISED = {
    "imagenet": ("DenseNet121", "DenseNet169", "DenseNet201"),
    "-1..1": (
        "MobileNet", "MobileNetV2", "InceptionV3", "InceptionResNetV2", "Xception", "NASNetMobile", "NASNetLarge",
        "ResNet50V2", "ResNet101V2", "ResNet152V2",
    ),
    "bgr": ("VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152"),
}  # fmt: skip
INITIALIZERS = {  # name of a variable -> attributes of its layer that may hold its initializer
    "kernel": ("kernel_initializer", "depthwise_initializer"),
    "depthwise_kernel": ("depthwise_initializer",),
    "pointwise_kernel": ("pointwise_initializer",),
}
TRUNCATED_NORMAL_STD = 0.87962566103423978  # of a unit normal truncated at two


class Unit(keras.layers.Layer):
    """Converts the standardised output of a regression to the unit of its targets: x * deviation + mean.

    Both are weights that are not trained: each fold model has the mean and the deviation of its own training rows.
    """

    def build(self, input_shape: Any) -> None:
        self.mean = self.add_weight(name="mean", shape=(), initializer="zeros", trainable=False)
        self.deviation = self.add_weight(name="deviation", shape=(), initializer="ones", trainable=False)

    def call(self, x: Tensor) -> Tensor:
        return x * self.deviation + self.mean


def build(member: Member, classes: int, target: TargetKind = "single", plugins: Plugins = NO_PLUGINS) -> keras.Model:
    """The network of a member before training. The same seed gives the same weights on every backend.

    plugins: those of the parameters, for the architecture and the augmentations.

    Raises UserError for weights that do not fit.
    """
    keras.utils.set_random_seed(member.train.seed)
    # Batches have a static shape; only training on smaller images needs a network of variable size.
    is_fixed = not member.train.low_resolution_epochs and member.training_size == member.image_size
    size = member.image_size if is_fixed else None
    inputs = keras.Input((size, size, 3), name="images")
    previous_policy = keras.config.dtype_policy()
    precision = member.train.precision  # of the activations; the weights are float32.  auto: before a device is chosen
    keras.config.set_dtype_policy("float32" if precision in ("auto", "float32") else f"mixed_{precision}")
    try:
        images = inputs
        for number, (name, strength) in enumerate(member.train.augment.items()):
            if is_on_device(name, plugins):  # these act in training only
                augment = checked_augmentation(name, plugins)
                images = DeviceAugmentation(augment, strength, seed=member.train.seed + number)(images)
        logits = features = _features(images, member, classes, plugins)
        if features._keras_history.operation.name != "logits":  # a model of the user's may have this layer
            if len(features.shape) > 2:
                is_grid = len(features.shape) == 4
                pool = keras.layers.GlobalAveragePooling2D if is_grid else keras.layers.GlobalAveragePooling1D
                features = pool()(features)
            pooled = keras.layers.Dropout(member.train.dropout, seed=member.train.seed)(features)
            logits = keras.layers.Dense(classes, dtype="float32", name="logits")(pooled)
        if target == "regression":
            logits = Unit(dtype="float32", name="unit")(logits)
    finally:
        keras.config.set_dtype_policy(previous_policy)
    model = keras.Model(inputs, logits, name=re.sub(r"\W", "_", member.architecture.lower()))
    # An augmentation before the network must not change its initial weights, which depend on the layers' positions.
    layers = [each for each in model._flatten_layers() if not isinstance(each, keras.Model | DeviceAugmentation)]
    draw_initial_weights(layers if member.weights == "none" else [model.get_layer("logits")], member.train.seed)
    for layer in layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = member.train.norm_momentum
            layer.trainable = not member.train.freeze_norm  # Keras then uses the stored statistics, as in inference
            # Statistics of the global batch, whatever the number of replicas; on JAX this is always so.
            layer.synchronized = keras.backend.backend() == "tensorflow"
    position = {variable.path: number for number, variable in enumerate(model.trainable_variables)}
    trained = [layer for layer in layers if any(one.path in position for one in layer._trainable_variables)]
    trained.sort(key=lambda layer: position[layer._trainable_variables[0].path])
    for layer in trained[: min(round(len(trained) * (1 - member.train.trained_share)), len(trained) - 1)]:
        layer.trainable = False  # the gradient ends before it
    return model


def _features(images: Tensor, member: Member, classes: int, plugins: Plugins) -> Tensor:
    """Features of the images, (B, h, w, F), (B, T, F) or (B, F); (B, C) logits from a model with a layer `logits`."""
    if member.architecture.startswith(TIMM):
        raise UserError(
            f"{member.architecture} is computed by PyTorch and cannot be a part of a Keras model, an export or a compiled step; "
            "new images are predicted by `make predict-folder`, or export another member: MEMBER=..."
        )
    if member.architecture == FROM_FILE:
        return backbone_from_file(images, member.weights, member.normalise, member.train.precision)
    builder = plugins.named("MODELS", member.architecture, {*BUILDERS, *APPLICATIONS})
    if builder is not None:
        return _plugin_features(plugins, builder, images, member, classes)
    if member.architecture in BUILDERS:
        features = BUILDERS[member.architecture](images, member)
        _load_weights(keras.Model(keras.utils.get_source_inputs(features)[0], features), member)
        return features
    return _application(images, member)


def _plugin_features(plugins: Plugins, builder: Any, images: Any, member: Member, classes: int) -> Any:
    """The output of the user's model on the images; the model's own layers, so that `logits` stays a layer of ours."""
    what, options = f"MODELS[{member.architecture!r}]", {}
    if "alpha" in inspect.signature(builder).parameters:
        options["alpha"] = member.alpha
    model = plugins.call(what, builder, image_size=images.shape[1], classes=classes, **options)
    if not isinstance(model, keras.Model) or len(model.inputs) != 1 or len(model.outputs) != 1:
        expected = "a keras.Model with one input and one output was expected"
        raise UserError(plugins.problem(what, f"{expected}; {type(model).__name__} was found"))
    _load_weights(model, member)
    last = model.outputs[0]._keras_history.operation
    if last.name != "logits":
        return plugins.call(what, model, images)
    if (
        not isinstance(last, keras.layers.Dense)
        or last.activation is not keras.activations.linear
        or last.units != classes
    ):
        expected = f"a Dense layer of {classes} units without activation"
        raise UserError(plugins.problem(what, f"its layer 'logits' must be {expected}"))
    last.dtype_policy = keras.DTypePolicy("float32")
    return last(plugins.call(what, keras.Model(model.inputs, last.input), images))


def _load_weights(model: keras.Model, member: Member) -> None:
    """Load member.weights, a .weights.h5 or .keras file, into the model."""
    if member.weights != "none":
        with _weights_file(member) as weights:
            model.load_weights(weights)


def small_cnn(images: Tensor, member: Member) -> Tensor:
    """Three stages of two 3x3 convolutions with batch norm, for small images."""
    x = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(images)
    for width in (32, 64, 128):
        width = max(8, int(width * member.alpha) // 8 * 8)
        for _ in range(2):
            x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = keras.layers.BatchNormalization()(x)
            x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    return x


BUILDERS = {"cnn": small_cnn}
APPLICATIONS = [name for name in dir(keras.applications) if name[0].isupper()]


def _application(images: Tensor, member: Member) -> Tensor:
    """A network of keras.applications without its last layers."""
    constructor, source = getattr(keras.applications, member.architecture), member.weights
    if source not in ("none", "imagenet") and "://" not in source and not Path(source).is_file():
        raise UserError(
            f"weights {source!r}: no file {Path(source).absolute()}; expected none, imagenet or a .weights.h5 file"
        )
    options: dict[str, Any] = {"include_top": False, "input_shape": images.shape[1:]}
    if member.architecture in ("MobileNet", "MobileNetV2"):
        options["alpha"] = member.alpha
    with _weights_file(member) as weights:
        backbone = constructor(weights=None if source == "none" else weights, **options)
    scaling = next((key for key, names in NORMALISED.items() if member.architecture in names), "none")
    return backbone(normalised(images, NORMALISATIONS[scaling], is_bgr=scaling == "bgr"))


@contextmanager
def _weights_file(member: Member) -> Iterator[str]:
    """Path or name of the member's weights on this machine. Errors of what reads them inside the block become UserErrors."""
    try:
        with files.local_copy(member.weights) as weights:
            yield weights
    except Exception as error:
        if url := re.search(r"URL fetch failure on (\S+?):? ", str(error)):  # Keras raises a plain Exception
            raise MissingWeights(
                f"weights imagenet of {member.architecture} are not on this machine and cannot be downloaded; download {url[1]} "
                "on a machine with network and put it into ~/.keras/models of this one"
            ) from None
        if not isinstance(error, ValueError | OSError):
            raise
        alpha = f", alpha {member.alpha:g}" if member.architecture in ("MobileNet", "MobileNetV2") else ""
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{member.architecture} with weights {member.weights!r}: the file is not one of {member.architecture}{alpha}; set "
            f"architecture and alpha of the member to those of the file (Keras: {reason})"
        ) from None


def draw_initial_weights(layers: Iterable[Any], seed: int) -> None:
    """Draw every kernel with a variance-scaling initializer (Glorot & Bengio 2010, He et al. 2015, LeCun) again, likewise distributed.

    By NumPy, because Keras draws different values on each backend and a member must start alike on all.
    """
    for position, layer in enumerate(layers):
        for variable in layer.trainable_variables:
            initializers = [getattr(layer, name, None) for name in INITIALIZERS.get(variable.name, ())]
            scaling = next((i for i in initializers if isinstance(i, keras.initializers.VarianceScaling)), None)
            if scaling is None:
                continue
            shape, random = tuple(variable.shape), np.random.default_rng([seed, position])
            field = int(np.prod(shape[:-2]))
            fans: dict[str, float] = {"fan_in": shape[-2] * field, "fan_out": shape[-1] * field}  # as Keras counts them
            fans["fan_avg"] = (fans["fan_in"] + fans["fan_out"]) / 2
            deviation = (scaling.scale / max(1.0, fans[scaling.mode])) ** 0.5
            if scaling.distribution == "uniform":
                values = random.uniform(-(3**0.5) * deviation, 3**0.5 * deviation, shape)
            else:
                values = random.standard_normal(shape)
                if scaling.distribution == "truncated_normal":
                    deviation /= TRUNCATED_NORMAL_STD
                    while (outside := np.abs(values) > 2).any():
                        values[outside] = random.standard_normal(int(outside.sum()))
                values *= deviation
            variable.assign(values.astype(np.float32))
