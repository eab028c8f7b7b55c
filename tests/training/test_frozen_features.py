"""Frozen-feature members: heads of every kind and target, the same by NumPy and Keras, on features that are computed once."""

import itertools
import os
import threading
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from builders import CLASSES, member, params, pixels_of
from sklearn.linear_model import LogisticRegression

from competition.config.params import Head
from competition.ensemble.metrics import METRICS
from competition.ensemble.view_transforms import get_views
from competition.input_pipeline.labelled_images import Images
from competition.prepare.targets import Targets
from competition.training import features, logistic_regression
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.head_trainer import HeadLayer, HeadTrainer, network_with_head
from competition.training.heads import (
    LEAST_SCALE,
    STRENGTHS,
    HeadRows,
    fit_best_head,
    fit_path,
    head_outputs,
    inner_parts_of,
    probabilities_of,
)
from competition.training.model import build

N, F, VIEWS = 120, 6, 2
rng = np.random.default_rng(0)
LABELS = np.arange(N) % 3
CENTRES = rng.normal(0, 3, (3, F))
FEATURES = (CENTRES[LABELS] + rng.normal(0, 1, (VIEWS, N, F))).astype(np.float32)


def rows_of(kind: str) -> HeadRows:
    """The rows as classes, as two labels of which one stands for class 2 or as a number."""
    several, number = np.stack([LABELS == 2, LABELS > 0], axis=1), 100.0 + 10 * LABELS
    targets, classes = {"single": (LABELS, 3), "multi": (several, 2), "regression": (number, 1)}[kind]
    return HeadRows(FEATURES, targets, np.ones(N), classes, kind)


@pytest.mark.parametrize("target", ["single", "multi", "regression"])
@pytest.mark.parametrize("kind", ["linear", "rbf", "mlp", "neighbours"])
def test_every_head_learns_every_kind_of_target_and_keras_computes_what_numpy_does(kind: str, target: str) -> None:
    rows = rows_of(target)
    head = fit_path(Head(kind), rows.part(np.arange(60)), [5.0 if kind == "neighbours" else 1.0], seed=0)[0]
    outputs = head_outputs(head, FEATURES[0, 60:], rows.kind)
    predicted, expected = probabilities_of(outputs, rows.kind), rows.targets[60:]
    if target == "regression":
        assert np.abs(predicted[:, 0] - expected).mean() < 3.0
    else:
        labels = predicted.argmax(1) if target == "single" else predicted > 0.5
        assert (labels == expected).mean() > 0.95
    inputs = keras.Input((F,))
    network = keras.Model(inputs, HeadLayer(head, rows.kind)(inputs))
    np.testing.assert_allclose(network(FEATURES[0, 60:]), outputs, rtol=2e-4, atol=2e-4)


def test_features_that_are_never_negative_are_standardised_after_their_square_root() -> None:
    rows = rows_of("single")
    skewed = replace(rows, features=np.maximum(rows.features, 0))
    assert float(fit_path(Head("linear"), rows, [1.0], 0)[0]["head/power"]) == 1.0
    assert float(fit_path(Head("linear"), skewed, [1.0], 0)[0]["head/power"]) == 0.5


@pytest.mark.parametrize("kind", ["linear", "rbf", "mlp"])
def test_a_class_without_training_rows_is_the_least_probable(kind: str) -> None:
    rows = rows_of("single").part(np.flatnonzero(LABELS != 1))
    probs = probabilities_of(head_outputs(fit_path(Head(kind), rows, [1.0], 0)[0], FEATURES[0], "single"), "single")
    assert probs.shape == (N, 3) and (probs.argmin(1) == 1).all()


def test_the_strength_is_chosen_on_rows_that_did_not_fit_it_and_duplicates_stay_together() -> None:
    noise = HeadRows(rng.normal(0, 1, (1, N, 60)).astype(np.float32), LABELS, np.ones(N), 3, "single")
    groups = np.arange(N) // 2
    parts = inner_parts_of(LABELS, groups, seed=1)
    assert all(26 <= part.sum() <= 34 for part in parts) and np.sum(parts, axis=0).tolist() == [1] * N
    assert all(len(set(groups[part]) & set(groups[~part])) == 0 for part in parts)
    # On features of noise the strongest penalty is best; on the training rows themselves it would be the weakest.
    fitted = fit_best_head(Head("linear", strengths=(1e-4, 100.0)), noise, parts, seed=0)
    assert fitted.strength == 1e-4


IDS = np.array([f"i{n:02}" for n in range(48)])
IMAGE_LABELS = np.arange(48) % CLASSES
IMAGES = Images(IDS, pixels_of(IMAGE_LABELS), IMAGE_LABELS, np.arange(48) // CLASSES % 3, np.ones(48, bool))


FROZEN = replace(member(), head=Head("linear"))
BOTH = get_views(["identity", "flip_lr"], params().plugins)


@pytest.fixture(scope="module")
def engine():
    return features.feature_engine(FROZEN, open_device(params("device.logical_devices=1").device), 7)


@pytest.fixture(scope="module")
def table(engine) -> np.ndarray:
    """(N, F) features of every image under the identity view."""
    return features.compute_features(engine, IMAGES, np.arange(48), BOTH[:1])[:, 0]


def test_features_of_a_convolutional_network_are_the_means_of_its_last_two_stages() -> None:
    """Whatever sizes the member is trained on; a network of two layers has no such stage and keeps its features."""
    two_sizes = replace(FROZEN, train=replace(FROZEN.train, low_resolution_epochs=1))
    network = features.feature_network(replace(two_sizes, architecture="MobileNet", image_size=64))
    whole = build(replace(FROZEN, architecture="MobileNet", image_size=64), 2)
    (backbone,) = (layer for layer in whole.layers if isinstance(layer, keras.Model))
    stages = keras.Model(backbone.inputs, [backbone.get_layer(f"conv_pw_{n}_relu").output for n in (13, 11)])
    pixels = pixels_of(IMAGE_LABELS[:4], size=64).astype(np.float32)
    means = [np.asarray(stage).mean((1, 2)) for stage in stages(pixels / 127.5 - 1)]
    np.testing.assert_allclose(network(pixels), np.concatenate(means, 1), atol=1e-5)
    small = features.feature_network(FROZEN)
    assert small.output_shape == (None, build(FROZEN, 2).get_layer("logits").input.shape[1])


def test_features_of_a_transformer_are_its_class_token_and_the_mean_of_its_patches(tmp_path: Path) -> None:
    keras_hub = pytest.importorskip("keras_hub", reason="a KerasHub preset needs goldfold[hub]")
    tiny = keras_hub.models.ViTBackbone((16, 16, 3), 4, 1, 2, 8, 16)
    tiny.save_to_preset(str(tmp_path / "vit"))
    stated = {"architecture": "from_file", "weights": str(tmp_path / "vit"), "normalise": "-1..1"}
    network = features.feature_network(replace(FROZEN, **stated))
    pixels = pixels_of(IMAGE_LABELS[:4]).astype(np.float32)
    tokens = np.asarray(tiny(pixels / 127.5 - 1))
    assert tokens.shape == (4, 17, 8)
    np.testing.assert_allclose(network(pixels), np.concatenate([tokens[:, 0], tokens[:, 1:].mean(1)], 1), atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "rbf"])
def test_a_feature_that_is_rare_in_the_training_rows_does_not_decide_alone(kind: str) -> None:
    """It is .01 in one training row and .3 in every later one, which would be hundreds of standard deviations."""
    rare = np.zeros((VIEWS, N, 1), np.float32)
    rare[:, 0] = 0.01
    rows = replace(rows_of("single"), features=np.concatenate([FEATURES, rare], 2))
    later = np.concatenate([FEATURES[0], np.full((N, 1), 0.3, np.float32)], 1)
    head = fit_path(Head(kind), rows, [1.0], 0)[0]
    assert (head_outputs(head, later, "single").argmax(1) == LABELS).mean() > 0.95


def trainer_on(table: np.ndarray, labels: np.ndarray = IMAGE_LABELS) -> HeadTrainer:
    rows = FoldRows(FROZEN, replace(IMAGES, labels=labels), CLASSES)
    return HeadTrainer(rows, METRICS["macro_f1"], features.stored_features(IDS[::-1], {"identity": table[::-1]}))


def test_no_label_of_the_held_out_fold_changes_its_fold_model(table) -> None:
    others = np.where(IMAGES.folds == 1, (IMAGE_LABELS + 1) % CLASSES, IMAGE_LABELS)
    predictions = []
    for labels in (IMAGE_LABELS, others):
        trainer = trainer_on(table, labels)
        trained = trainer.train_to_end(1, trainer.member.train)
        predictions.append(trainer.out_of_fold(1, trained))
        assert trained.selected.learning_rate == 0.0 and trained.selected.strength in STRENGTHS["linear"]
    np.testing.assert_array_equal(predictions[0].probs, predictions[1].probs)
    assert predictions[0].ids.tolist() == IDS[IMAGES.folds == 1].tolist()


def test_the_losses_of_a_regression_have_the_same_unit_whatever_that_of_the_values_is(table) -> None:
    values, losses = np.linspace(1.0, 2.0, CLASSES), []
    for unit in (1.0, 100.0):
        rows = FoldRows(FROZEN, IMAGES, 1, Targets("regression", unit * values))
        trainer = HeadTrainer(rows, METRICS["rmse"], features.stored_features(IDS, {"identity": table}))
        trained = trainer.train_to_end(1, FROZEN.train)
        losses.append((trained.selected.loss, trained.selected.held_out_loss))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_heads_fitted_side_by_side_are_those_fitted_one_after_another(table, monkeypatch) -> None:
    alone, together = trainer_on(table), trainer_on(table)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    meeting, stored = threading.Barrier(3, timeout=60), together._features

    def wait_for_others(*request):
        if threading.current_thread() is not threading.main_thread():
            meeting.wait()
        return stored(*request)

    together._features = wait_for_others
    with together.fitting_ahead([0, 1, 2], together.member.train):
        for fold in (2, 0, 1):
            for trainer in (alone, together):
                trainer.train_to_end(fold, trainer.member.train)
            for name, array in alone.weights().items():
                np.testing.assert_array_equal(together.weights()[name], array, err_msg=name)


def test_the_whole_network_with_its_head_predicts_what_the_stored_features_give(table) -> None:
    trainer = trainer_on(table)
    trainer.train_to_end(0, trainer.member.train)
    network = network_with_head(FROZEN, trainer.weights(), "single", params().plugins)
    pixels = np.asarray(IMAGES.pixels[np.arange(48)], np.float32)
    probs = trainer.predict(None, IMAGES, np.arange(48), ["identity"]).probs[:, 0]
    np.testing.assert_allclose(keras.ops.softmax(network(pixels)), probs, atol=2e-3)


def test_features_are_zero_for_an_unreadable_image_and_joined_by_id(engine) -> None:
    broken = replace(IMAGES, readable=np.arange(48) != 5)
    whole = features.compute_features(engine, IMAGES, np.arange(48), BOTH)
    part = features.compute_features(engine, broken, np.array([4, 5, 6]), BOTH)
    assert whole.shape[:2] == (48, 2) and not part[1].any()
    np.testing.assert_allclose(part[[0, 2]], whole[[4, 6]], atol=1e-5)
    stored = features.stored_features(IDS[::-1], {"flip_lr": whole[::-1, 1]})
    np.testing.assert_array_equal(stored(IMAGES, np.array([3, 40]), "flip_lr"), whole[[3, 40], 1])


def test_features_of_new_images_are_computed_once_for_all_heads_and_anew_for_other_images(engine) -> None:
    live, rows = features.LiveFeatures(engine, params().plugins), np.arange(6)
    first = live(IMAGES, rows, "flip_lr")
    np.testing.assert_array_equal(first, features.compute_features(engine, IMAGES, rows, BOTH[1:])[:, 0])
    assert live(IMAGES, rows.copy(), "flip_lr") is first and live(IMAGES, rows, "identity") is not first
    assert live(IMAGES, rows[::-1], "flip_lr").tolist() == first[::-1].tolist()
    others = replace(IMAGES, pixels=pixels_of(IMAGE_LABELS[::-1]))
    assert not np.allclose(live(others, rows, "flip_lr"), first)


def test_an_interrupted_pass_goes_on_behind_its_last_complete_chunk(engine, table, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(features, "CHUNK", 20)
    file, passes = tmp_path / "features.npy", list[int]()

    def stop_at_second_chunk(done: int, total: int) -> None:
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features.store_features(engine, IMAGES, {BOTH[0]: file}, stop_at_second_chunk)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features-00000000.npy"]
    features.store_features(engine, IMAGES, {BOTH[0]: file}, lambda done, _: passes.append(done))
    assert passes[0] == 20 and sorted(path.name for path in tmp_path.iterdir()) == ["features.npy"]
    np.testing.assert_array_equal(np.load(file), table.astype(np.float16))


@pytest.mark.parametrize(
    ("count", "large"),
    [(60, logistic_regression.LARGE), (12, logistic_regression.LARGE), (60, 1.0)],
    ids=["more rows than features", "fewer rows than features", "summed over blocks of rows"],
)
@pytest.mark.parametrize("kind", ["single", "multi"])
def test_the_linear_head_is_the_logistic_regression_of_scikit_learn(kind: str, count: int, large: float, monkeypatch):
    monkeypatch.setattr(logistic_regression, "LARGE", large)
    random = np.random.default_rng(3)
    labels, weights = np.arange(count) % 3, random.uniform(0.5, 2.0, count)
    features = (random.normal(0, 1, (3, 20))[labels] + random.normal(0, 2, (count, 20))).astype(np.float32)
    truth = np.eye(3)[labels] + np.eye(3)[::-1][labels] > 0
    rows = HeadRows(features[None], truth if kind == "multi" else labels, weights, 3, kind)
    x = (features - features.mean(0)) / np.hypot(features.std(0), LEAST_SCALE * features.std(0).mean())
    for strength, head in zip((0.01, 1.0), fit_path(Head("linear"), rows, (0.01, 1.0), 0), strict=True):
        theirs = LogisticRegression(C=strength, tol=1e-7, max_iter=1000)
        if kind == "multi":
            fits = [theirs.fit(x, truth[:, label], sample_weight=weights).predict_proba(x)[:, 1] for label in range(3)]
            expected = np.stack(fits, 1)
        else:
            expected = theirs.fit(x, labels, sample_weight=weights).predict_proba(x)
        assert np.abs(probabilities_of(head_outputs(head, features, kind), kind) - expected).max() < 0.02


@pytest.mark.parametrize("kind", ["linear", "rbf", "mlp"])
def test_a_fit_ends_as_soon_as_there_is_no_time_left(kind: str) -> None:
    calls = itertools.count(1)

    def time_is_up_at_the_third_call() -> None:
        if next(calls) >= 3:
            raise TimeoutError

    parts = inner_parts_of(LABELS, np.arange(N), 0)
    with pytest.raises(TimeoutError):
        fit_best_head(Head(kind), rows_of("single"), parts, 0, time_is_up_at_the_third_call)
    assert next(calls) <= 20  # and not one for every step of every fit
