"""Linear probing: the features are the inputs of the last layer, and the layer agrees with scikit-learn."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from builders import CLASSES, member, params, pixels_of
from sklearn.linear_model import LogisticRegression

from competition.images.labelled_images import Images
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.model import build
from competition.training.probe import INVERSE_STRENGTH, linear_probe, pooled_features, with_head
from competition.training.trainer import Trainer

LABELS = np.arange(37) % CLASSES


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return build(member(), CLASSES)


def test_features_are_the_inputs_of_the_last_layer_and_do_not_depend_on_padding(model) -> None:
    pixels, rows = pixels_of(LABELS), np.array([30, 2, 2, 36, 0])
    features = pooled_features(model, pixels, rows, batch=4)
    kernel, bias = (keras.ops.convert_to_numpy(v) for v in model.get_layer("logits").weights)
    logits = keras.ops.convert_to_numpy(model(pixels[rows].astype(np.float32), training=False))
    np.testing.assert_allclose(features @ kernel + bias, logits, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_probe_agrees_with_scikit_learn_on_standardised_features(classes) -> None:
    random, labels = np.random.default_rng(0), np.arange(60) % classes
    features = (random.normal(size=(60, 5)) * [1, 10, 0.1, 3, 1] + labels[:, None]).astype(np.float32)
    weights = random.uniform(0.5, 2, 60)
    kernel, bias = linear_probe(features, labels, weights, classes)
    standard = (features - features.mean(0)) / (features.std(0) + 1e-6)
    reference = LogisticRegression(C=INVERSE_STRENGTH, max_iter=200).fit(standard, labels, sample_weight=weights)
    probs = np.exp(logits := features @ kernel + bias) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(probs, reference.predict_proba(standard), atol=1e-3)


def test_a_class_without_rows_is_the_least_likely_everywhere() -> None:
    features, labels = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2 * 2
    kernel, bias = linear_probe(features, labels, np.ones(40), classes=4)
    assert not kernel[:, [1, 3]].any() and bias[[1, 3]].max() < bias[[0, 2]].min()


def test_only_the_last_layer_is_replaced() -> None:
    weights = {"a/kernel": np.zeros(2), "logits/kernel": np.zeros((2, 3)), "logits/bias": np.zeros(3)}
    after = with_head(weights, np.ones((2, 3)), np.ones(3))
    assert not after["a/kernel"].any() and after["logits/kernel"].all() and after["logits/bias"].all()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_probed_member_starts_better_than_chance_on_held_out_rows(devices) -> None:
    folds = np.arange(len(LABELS)) // CLASSES % 2
    images = Images(LABELS.astype(str), pixels_of(LABELS), LABELS, folds, np.ones(len(LABELS), bool))
    images = replace(images, ids=np.array([f"i{n}" for n in range(len(LABELS))]))
    recipe = member(probe=True, epochs=1, learning_rate=1e-9, warmup=0.0)
    device = open_device(params(f"device.logical_devices={devices}").device)
    trainer = Trainer(FoldRows(recipe, images, CLASSES), "accuracy", device, 8)
    trainer.train_to_end(0, recipe.train)
    assert trainer.score(0) > 0.6
