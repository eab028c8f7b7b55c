"""Grad-CAM by one forward pass is Grad-CAM by gradients; other networks are explained by occlusion."""

import keras
import numpy as np
import tensorflow as tf
from builders import CLASSES, member, params, pixels_of

from competition.training import grad_cam
from competition.training.grad_cam import ClassMaps


def test_the_maps_are_those_of_the_gradient_of_the_logit() -> None:
    explained = ClassMaps(member(), CLASSES, params().plugins)
    classes = np.arange(6) % CLASSES
    pixels = pixels_of(classes)
    pool = next(layer for layer in explained.model.layers if isinstance(layer, keras.layers.GlobalAveragePooling2D))
    both = keras.Model(explained.model.inputs[0], [pool.input, explained.model.output])
    with tf.GradientTape() as tape:
        features, logits = both(pixels.astype(np.float32), training=False)
        score = tf.reduce_sum(tf.gather(logits, classes, batch_dims=1))  # of each image by itself
    weights = tf.reduce_mean(tape.gradient(score, features), (1, 2), keepdims=True)
    expected = np.maximum(tf.reduce_sum(weights * features, -1), 0)
    maps = explained.maps(pixels, classes)
    assert maps.shape == expected.shape and maps.max() == 1
    np.testing.assert_allclose(maps, expected / np.maximum(expected.max((1, 2), keepdims=True), 1e-12), atol=1e-4)
    assert not np.allclose(maps, explained.maps(pixels, (classes + 1) % CLASSES))


def test_a_network_without_an_averaged_grid_is_explained_by_covering_parts_of_the_image(monkeypatch) -> None:
    inputs = keras.Input((16, 16, 3))
    logits = keras.layers.Dense(CLASSES, name="logits")
    network = keras.Model(inputs, logits(keras.layers.Flatten()(inputs)))
    kernel = np.zeros((16, 16, 3, CLASSES), np.float32)
    kernel[:8, :8, :, 1] = 1  # the logit of class 1 is the brightness of the upper left quarter
    logits.kernel.assign(kernel.reshape(-1, CLASSES))
    monkeypatch.setattr(grad_cam, "build", lambda *_, **__: network)
    explained = ClassMaps(member(), CLASSES, params().plugins)
    pixels = np.zeros((20, 16, 16, 3), np.uint8)
    pixels[:, :8, :8] = 200
    maps = explained.maps(pixels, np.array([1] * 19 + [0]))
    assert explained.method == "Occlusion" and maps.shape == (20, 8, 8)
    assert (maps[0] == maps[0].T).all() and maps[0, 1, 1] == 1 and maps[0, :4, :4].min() > 0
    assert maps[0, 5:].max() == maps[0, :, 5:].max() == maps[19].max() == 0
