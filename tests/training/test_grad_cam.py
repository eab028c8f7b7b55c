"""Grad-CAM by one forward pass is Grad-CAM by gradients, for the networks here."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import CLASSES, member, pixels_of

from competition.config.errors import UserError
from competition.training import grad_cam
from competition.training.grad_cam import GradCam


def test_the_maps_are_those_of_the_gradient_of_the_logit() -> None:
    explained = GradCam(member(), CLASSES)
    classes = np.arange(6) % CLASSES
    pixels = pixels_of(classes)
    pool = next(layer for layer in explained.model.layers if isinstance(layer, keras.layers.GlobalAveragePooling2D))
    both = keras.Model(explained.model.inputs[0], [pool.input, explained.model.output])
    expected = []
    for image, wanted in zip(pixels, classes, strict=True):
        with tf.GradientTape() as tape:
            features, logits = both(image[None].astype(np.float32), training=False)
            score = logits[0, wanted]
        weights = tf.reduce_mean(tape.gradient(score, features), (1, 2), keepdims=True)
        one = np.maximum(tf.reduce_sum(weights * features, -1)[0].numpy(), 0)
        expected.append(one / max(one.max(), 1e-12))
    maps = explained.maps(pixels, classes)
    assert maps.shape == np.shape(expected) and maps.max() == 1
    np.testing.assert_allclose(maps, expected, atol=1e-4)
    other = explained.maps(pixels, (classes + 1) % CLASSES)
    assert not np.allclose(maps, other)


def test_a_network_without_a_grid_of_features_is_refused_in_one_sentence(monkeypatch) -> None:
    inputs = keras.Input((8, 8, 3))
    logits = keras.layers.Dense(CLASSES, name="logits")(keras.layers.Flatten()(inputs))
    monkeypatch.setattr(grad_cam, "build", lambda *_: keras.Model(inputs, logits))
    with pytest.raises(UserError, match=r"no grid of features that is averaged.*MEMBER= chooses another member"):
        GradCam(member(), CLASSES)
