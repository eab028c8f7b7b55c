"""Build a member's network: images (B, H, W, 3) of 0..255 -> logits (B, C) float32, preprocessing included.

The network of a regression returns values (B, 1) in the unit of the targets.
"""

from pathlib import Path
from typing import Any

import keras

from competition.config.errors import UserError
from competition.config.params import Member
from competition.ensemble.metrics import TargetKind
from competition.storage import bucket
from competition.training.initializers import draw_initial_weights

# Preprocessing of each family of keras.applications; families not listed here scale inside their own graph.
# Source: keras.applications.imagenet_utils.preprocess_input and each family's preprocess_input.
PLUS_MINUS_ONE = (
    "MobileNet",
    "MobileNetV2",
    "InceptionV3",
    "InceptionResNetV2",
    "Xception",
    "NASNet",
    "ResNet50V2",
    "ResNet101V2",
    "ResNet152V2",
)
IMAGENET_STATISTICS = ("DenseNet",)
BGR_MEANS = ("VGG", "ResNet50", "ResNet101", "ResNet152")


class Unit(keras.layers.Layer):
    """Converts the standardised output of a regression to the unit of its targets: x * deviation + mean.

    Both are weights that are not trained: each fold model has the mean and the deviation of its own training rows.
    """

    def build(self, input_shape: Any) -> None:
        self.mean = self.add_weight(name="mean", shape=(), initializer="zeros", trainable=False)
        self.deviation = self.add_weight(name="deviation", shape=(), initializer="ones", trainable=False)

    def call(self, x: Any) -> Any:
        return x * self.deviation + self.mean


def build(member: Member, classes: int, target: TargetKind = "single") -> keras.Model:
    """The network of a member before training. The same seed gives the same weights on every backend.

    Raises UserError for an unknown architecture or weights that do not fit.
    """
    keras.utils.set_random_seed(member.train.seed)
    # Batches have a static shape; only training that starts with smaller images needs a network of variable size.
    size = None if member.train.small_epochs else member.image_size
    inputs = keras.Input((size, size, 3), name="images")
    previous_policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if member.train.precision == "bfloat16" else "float32")
    try:
        builder = BUILDERS.get(member.architecture, _backbone)
        features = builder(inputs, member)
        pooled = keras.layers.GlobalAveragePooling2D()(features)
        pooled = keras.layers.Dropout(member.train.dropout, seed=member.train.seed)(pooled)
        logits = keras.layers.Dense(classes, dtype="float32", name="logits")(pooled)
        if target == "regression":
            logits = Unit(dtype="float32", name="unit")(logits)
    finally:
        keras.config.set_dtype_policy(previous_policy)
    model = keras.Model(inputs, logits, name=member.architecture.lower())
    layers = _all_layers(model)
    draw_initial_weights(layers if member.weights == "none" else [model.get_layer("logits")], member.train.seed)
    for layer in layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = member.train.norm_momentum
            layer.trainable = not member.train.freeze_norm  # Keras then uses the stored statistics, as in inference
            # Statistics of the global batch, whatever the number of replicas; on JAX this is always so.
            layer.synchronized = keras.backend.backend() == "tensorflow"
    return model


def small_cnn(images: Any, member: Member) -> Any:
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


def _backbone(images: Any, member: Member) -> Any:
    constructor = getattr(keras.applications, member.architecture, None)
    if not member.architecture[:1].isupper() or not callable(constructor):
        names = [name for name in dir(keras.applications) if name[0].isupper()]
        raise UserError(
            f"unknown architecture {member.architecture!r}; expected one of {', '.join([*BUILDERS, *names])}"
        )
    source = member.weights
    if source not in ("none", "imagenet") and "://" not in source and not Path(source).is_file():
        raise UserError(f"weights {source!r}: no such file; expected none, imagenet or a .weights.h5 file")
    options: dict[str, Any] = {"include_top": False, "input_shape": images.shape[1:]}
    if member.architecture in ("MobileNet", "MobileNetV2"):
        options["alpha"] = member.alpha
    try:
        with bucket.local_copy(source) as weights:
            backbone = constructor(weights=None if source == "none" else weights, **options)
    except (ValueError, OSError) as error:
        raise UserError(
            f"{member.architecture} with weights {member.weights!r}: {' '.join(str(error).split())[:300]}"
        ) from None
    return backbone(_preprocessed(images, member.architecture))


def _preprocessed(images: Any, architecture: str) -> Any:
    if architecture.startswith(IMAGENET_STATISTICS):
        mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        scale = [1 / (255 * d) for d in deviation]
        return keras.layers.Rescaling(scale, offset=[-m / d for m, d in zip(mean, deviation, strict=True)])(images)
    if architecture in PLUS_MINUS_ONE or architecture.startswith("NASNet"):
        return keras.layers.Rescaling(1 / 127.5, offset=-1.0)(images)
    if architecture.startswith(BGR_MEANS):
        blue_green_red = keras.ops.flip(images, axis=-1)
        return keras.layers.Rescaling(1.0, offset=[-103.939, -116.779, -123.68])(blue_green_red)
    return images


def _all_layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if not isinstance(layer, keras.Model)]
