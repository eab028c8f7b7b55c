"""Operations that XLA supports on the TensorFlow backend. The registry of TPU operations agrees."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    pytest.skip("about TensorFlow's programs", allow_module_level=True)

import tensorflow as tf

from competition.ensemble.views import VIEWS
from competition.images.mixing import COUNT
from competition.preflight.lowering import Unsupported, lowered
from competition.training.batch_augmentation import augmented

IMAGES = [((2, 16, 16, 3), "float32")]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Set a seed: another test of this process may have enabled deterministic operations, which require one."""
    tf.random.set_seed(1)


# name -> (function, its arguments, the unsupported operation)
UNSUPPORTED: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "decode a JPEG": (lambda: tf.io.decode_jpeg(tf.constant(b"bytes"), channels=3), [], "DecodeJpeg"),
    "change JPEG quality": (
        lambda x: tf.image.adjust_jpeg_quality(x[0] / 255, 50),
        IMAGES,
        "EncodeJpegVariableQuality",
    ),
    "read a file": (lambda: tf.io.decode_raw(tf.io.read_file("name"), tf.uint8), [], "ReadFile"),
    "write numbers as text": (lambda x: tf.strings.length(tf.strings.as_string(x)), IMAGES, "AsString"),
    "call Python": (lambda x: tf.py_function(lambda y: y, [x], tf.float32), IMAGES, "EagerPyFunc"),
    "call NumPy": (lambda x: tf.numpy_function(np.sin, [x], tf.float32), IMAGES, "PyFunc"),
    "resize with antialias": (lambda x: tf.image.resize(x, (8, 8), antialias=True), IMAGES, "ScaleAndTranslate"),
    "resize bicubic": (lambda x: tf.image.resize(x, (8, 8), "bicubic"), IMAGES, "ResizeBicubic"),
    "crop and resize": (
        lambda x: tf.image.crop_and_resize(x, [[0.0, 0.0, 0.5, 0.5]], [0], (8, 8)),
        IMAGES,
        "CropAndResize",
    ),
    "mix by a gamma": (
        lambda x: x * tf.random.stateless_gamma((2, 1, 1, 1), [1, 2], 0.2),
        IMAGES,
        "StatelessRandomGammaV3",
    ),
}

# Functions, because layers create variables, which must not happen before the devices are configured.

SUPPORTED: dict[str, Callable[..., Any]] = {
    "resize bilinear": lambda x: tf.image.resize(x, (8, 8)),
    "resize nearest": lambda x: tf.image.resize(x, (8, 8), "nearest"),
    "quarter turn": lambda x: tf.image.rot90(x),
    "uniform noise": lambda x: x + tf.random.stateless_uniform(x.shape, [1, 2]),
    "shuffle": lambda x: tf.random.shuffle(x, seed=1),
    "hue": lambda x: tf.image.stateless_random_hue(x, 0.1, [1, 2]),
    "contrast": lambda x: tf.image.stateless_random_contrast(x, 0.5, 1.5, [1, 2]),
    "best five": lambda x: tf.math.top_k(tf.reshape(x, (2, -1)), 5),
    "order": lambda x: tf.argsort(tf.reshape(x, (2, -1))),
    "confusion matrix": lambda x: tf.math.confusion_matrix(tf.cast(x[:, 0, 0, 0], tf.int32), [0, 1], 3),
    "map": lambda x: tf.map_fn(lambda y: y * 2, x),
    "bfloat16": lambda x: tf.cast(tf.cast(x, tf.bfloat16) * 2, tf.float32),
    **{f"view {name}": VIEWS[name] for name in ("flip_lr", "rot270", "crop_top_left", "shift_up")},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_operation_is_an_error_with_its_name(name: str) -> None:
    function, specs, operation = UNSUPPORTED[name]
    with pytest.raises(Unsupported) as unsupported:
        lowered(function, specs)
    assert operation in unsupported.value.operations


def test_the_augmentation_inside_the_step_is_lowered() -> None:
    specs = [((4, 16, 16, 3), "uint8"), ((4, COUNT), "float32"), ((4, 3), "float32")]
    assert len(lowered(lambda pixels, numbers, targets: augmented((pixels, numbers), targets), specs)) > 100


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_operation_is_lowered(name: str) -> None:
    assert len(lowered(SUPPORTED[name], IMAGES)) > 100
