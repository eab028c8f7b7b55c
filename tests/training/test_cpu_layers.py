"""The layers for one CPU give what those of Keras give: outputs, gradients and statistics, in training and prediction."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from competition.training.cpu_layers import FusedBatchNormalization, PointwiseConv2D, use_cpu_layers

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(2.0, 3.0, (5, 4, 4, 6)).astype(np.float32)
UPSTREAM = RANDOM.normal(size=IMAGES.shape).astype(np.float32)


def model(dtype: str = "float32", size: tuple[int, ...] = (4, 4, 6), **options: Any) -> keras.Model:
    """One batch normalisation with scales, offsets and statistics that differ from 0 and 1."""
    inputs = keras.Input(size, dtype=dtype)
    layer = keras.layers.BatchNormalization(
        momentum=0.8, dtype=f"mixed_{dtype}" if dtype != "float32" else dtype, **options
    )
    built, random = keras.Model(inputs, layer(inputs)), np.random.default_rng(1)
    for variable in built.variables:
        variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return built


def results(built: keras.Model, training: bool, images: np.ndarray = IMAGES) -> list[np.ndarray]:
    """[output, gradient of the images, gradients of the trainable variables ..., all variables afterwards ...]."""
    x = tf.cast(tf.constant(images), built.inputs[0].dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = tf.cast(built(x, training=training), tf.float32)
        total = tf.reduce_sum(output * UPSTREAM.reshape(images.shape))
    gradients = tape.gradient(total, [x, *(v.value for v in built.trainable_variables)])
    return [np.asarray(tf.cast(each, tf.float32)) for each in (output, *gradients, *(v.value for v in built.variables))]


def fused(built: keras.Model) -> keras.Model:
    use_cpu_layers(built)
    assert type(built.layers[1]) is FusedBatchNormalization
    return built


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({}, True),
        ({}, False),
        ({"scale": False, "epsilon": 0.1}, True),
        ({"center": False}, False),
        ({"size": (6,)}, True),
        ({"trainable": False}, True),
        ({"dtype": "bfloat16"}, True),
    ],
    ids=str,
)
def test_outputs_gradients_and_statistics_are_those_of_keras(options: dict[str, Any], training: bool) -> None:
    images = IMAGES.reshape(-1, *options.get("size", IMAGES.shape[1:]))
    ours, theirs = (results(each, training, images) for each in (fused(model(**options)), model(**options)))
    is_exact = options.get("dtype", "float32") == "float32"
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if is_exact or number > len(ours) - 5:  # bfloat16 keeps scale, offset, moving mean and variance in float32
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(ours[0], theirs[0], atol=0.05)  # of outputs up to 4, with 8 bits of mantissa


def test_only_the_last_axis_and_the_plain_layer_are_fused() -> None:
    for other in (model(axis=1), model(renorm=True)):
        use_cpu_layers(other)
        assert type(other.layers[1]) is keras.layers.BatchNormalization


def convolution(filters: int = 6, size: int = 1, dtype: str = "float32", **options: Any) -> keras.Model:
    inputs = keras.Input(IMAGES.shape[1:], dtype=dtype)
    policy = f"mixed_{dtype}" if dtype != "float32" else dtype
    layer = keras.layers.Conv2D(filters, size, padding="same", dtype=policy, **options)
    built = keras.Model(inputs, layer(inputs))
    for variable in built.variables:
        variable.assign(np.random.default_rng(1).normal(0, 1, variable.shape))
    return built


@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"activation": "relu"}, {"dtype": "bfloat16"}], ids=str)
def test_a_convolution_of_one_pixel_has_the_outputs_and_gradients_of_keras(options: dict[str, Any]) -> None:
    ours, theirs = convolution(**options), convolution(**options)
    use_cpu_layers(ours)
    assert type(ours.layers[1]) is PointwiseConv2D
    relative, absolute = (
        (1e-4, 1e-4) if "dtype" not in options else (0.03, 0.5)
    )  # of gradients up to 80, with 8 bits of mantissa
    for mine, other in zip(results(ours, True), results(theirs, True), strict=True):
        np.testing.assert_allclose(mine, other, rtol=relative, atol=absolute)


def test_other_convolutions_stay_those_of_keras() -> None:
    for options in ({"size": 3}, {"strides": 2}, {"groups": 2}):
        other = convolution(**options)
        use_cpu_layers(other)
        assert type(other.layers[1]) is keras.layers.Conv2D
