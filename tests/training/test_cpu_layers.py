"""The layers for one CPU give what those of Keras give: outputs, gradients and statistics, in training and prediction."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from competition.training.cpu_layers import FusedBatchNormalization, PointwiseConv2D, use_cpu_layers

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(2.0, 3.0, (5, 4, 4, 6)).astype(np.float32)
UPSTREAM = RANDOM.normal(size=IMAGES.shape).astype(np.float32)
NORM = partial(keras.layers.BatchNormalization, momentum=0.8)
CONVOLUTION = partial(keras.layers.Conv2D, filters=6, kernel_size=1, padding="same")


def network(layer, size=(4, 4, 6), dtype="float32", **options) -> keras.Model:
    """One layer, whose variables differ from 0 and 1."""
    inputs = keras.Input(size, dtype=dtype)
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    built, random = keras.Model(inputs, layer(dtype=policy, **options)(inputs)), np.random.default_rng(1)
    for variable in built.variables:
        variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return built


def results(built: keras.Model, training: bool, images: np.ndarray) -> list[np.ndarray]:
    """[output, gradient of the images, gradients of the trainable variables ..., all variables afterwards ...]."""
    x = tf.cast(tf.constant(images), built.inputs[0].dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = tf.cast(built(x, training=training), tf.float32)
        total = tf.reduce_sum(output * UPSTREAM.reshape(images.shape))
    gradients = tape.gradient(total, [x, *(v.value for v in built.trainable_variables)])
    return [np.asarray(tf.cast(each, tf.float32)) for each in (output, *gradients, *(v.value for v in built.variables))]


@pytest.mark.parametrize(
    ("layer", "options", "training"),
    [
        (NORM, {}, True),
        (NORM, {}, False),
        (NORM, {"scale": False, "epsilon": 0.1}, True),
        (NORM, {"center": False}, False),
        (NORM, {"size": (6,)}, True),
        (NORM, {"trainable": False}, True),
        (NORM, {"dtype": "bfloat16"}, True),
        (CONVOLUTION, {}, True),
        (CONVOLUTION, {"use_bias": False}, True),
        (CONVOLUTION, {"activation": "relu"}, True),
        (CONVOLUTION, {"dtype": "bfloat16"}, True),
    ],
)
def test_outputs_gradients_and_statistics_are_those_of_keras(layer, options, training) -> None:
    images = IMAGES.reshape(-1, *options.get("size", IMAGES.shape[1:]))
    ours, theirs = network(layer, **options), network(layer, **options)
    use_cpu_layers(ours)
    assert type(ours.layers[1]) is (FusedBatchNormalization if layer is NORM else PointwiseConv2D)
    pairs = list(zip(results(ours, training, images), results(theirs, training, images), strict=True))
    for number, (mine, other) in enumerate(pairs):
        tolerance = {"rtol": 1e-4, "atol": 2e-5 if layer is NORM else 1e-4}
        # With 8 bits of mantissa, outputs are of up to 4 or 30, gradients of up to 80; variables stay in float32.
        if "dtype" in options and number < len(pairs) - len(ours.variables):
            tolerance = {"rtol": 0.03, "atol": 0.5} if number else {"rtol": 0.01, "atol": 0.03}
        np.testing.assert_allclose(mine, other, **tolerance)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (NORM, {"axis": 1}),
        (NORM, {"renorm": True}),
        (CONVOLUTION, {"kernel_size": 3}),
        (CONVOLUTION, {"strides": 2}),
        (CONVOLUTION, {"groups": 2}),
    ],
)
def test_other_layers_stay_those_of_keras(layer, options) -> None:
    other = network(layer, **options)
    use_cpu_layers(other)
    assert type(other.layers[1]) is layer.func
