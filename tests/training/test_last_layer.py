"""The last layer: solved before training (linear probing), and those of multi-label and regression members."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from builders import CLASSES, member, network_trainer, params, pixels_of
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import root_mean_squared_error

from competition.input_pipeline.labelled_images import Images
from competition.prepare.targets import SINGLE, Targets
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.heads import PROBE, linear_probe
from competition.training.network_trainer import PROBED_STEPS, NetworkTrainer, share_after_probe
from competition.training.optimizer import label_losses
from competition.training.trainer import Epoch, save_fold_model

SETS = Targets("multi", np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]], bool))
VALUES = Targets("regression", np.array([1000.0, 1010.0, 1020.0]))
PROBED = {"probe": True, "warmup": 0.0, "freeze_norm": True}


def trainer_of(targets: Targets = SINGLE, metric: str = "accuracy", **train) -> NetworkTrainer:
    """Three folds of 60 images that show their target."""
    rows = np.arange(60)
    labels = rows % (CLASSES if targets is SINGLE else len(targets.table))
    shown = targets.table[labels].argmax(1) if targets.kind == "multi" else labels
    images = Images(rows.astype(str), pixels_of(shown), labels, rows // 5 % 3, np.ones(60, bool))
    classes = 1 if targets is VALUES else CLASSES
    return network_trainer(FoldRows(member(**train), images, classes, targets), metric, open_device(params().device))


def test_a_probe_is_scikit_learns_regression_on_standardised_features() -> None:
    random, labels = np.random.default_rng(0), np.arange(60) % CLASSES
    features = (random.normal(size=(60, 5)) * [1, 10, 0.1, 3, 1] + labels[:, None]).astype(np.float32)
    weights = random.uniform(0.5, 2, 60)
    kernel, bias = linear_probe(features, labels, weights, CLASSES, np.arange(60))
    standard, logits = (features - features.mean(0)) / (features.std(0) + 1e-6), features @ kernel + bias
    agreements = []
    for strength in PROBE.strengths:
        reference = LogisticRegression(C=strength, max_iter=300)
        expected = reference.fit(standard, labels, weights / weights.mean()).decision_function(standard)
        agreements.append(np.corrcoef(logits.ravel(), expected.ravel())[0, 1])  # up to the temperature
    assert max(agreements) > 0.9995


def test_training_that_destroys_the_probed_head_ends_with_that_head_where_rows_were_kept_to_see_it(tmp_path) -> None:
    trainer = trainer_of(epochs=4, learning_rate=50.0, patience=2, patience_share=0.3, **PROBED)
    trained = trainer.train_to_end(0, trainer.member.train)
    assert trained.selected.epoch == 0 and len(trained.history) == 2
    assert trained.selected.inner > max(epoch.inner for epoch in trained.history)
    probed = trainer._initial_weights(trainer.fold_rows.plan(0, trainer.member.train))
    for name, value in trainer.weights().items():
        np.testing.assert_array_equal(value, probed[name])
    result = save_fold_model(trainer, 0, trained, tmp_path)[1]
    assert result["epoch"] == 0 and result["held_out"] == trainer.score_of(trainer.held_out(0), 0) > 0.6


def test_the_backbone_of_an_engine_is_one_network_whose_features_follow_the_weights() -> None:
    trainer = trainer_of(learning_rate=0.01)
    images = trainer.images.pixels[:8].astype(np.float32)
    backbone = trainer.engine.backbone
    before = backbone.predict_on_batch(images)
    trainer.train_to_end(0, replace(trainer.member.train, epochs=1))
    assert trainer.engine.backbone is backbone  # Keras compiles it once, for all trainers with this engine
    assert not np.array_equal(backbone.predict_on_batch(images), before)


def test_of_several_labels_the_last_layer_alone_is_trained_first() -> None:
    trainer = trainer_of(SETS, "multilabel_macro_f1", **PROBED)
    before = trainer.weights()
    for epochs in (1, 2):
        trainer.train_to_end(0, replace(trainer.member.train, epochs=epochs))
        changed = {name for name, value in trainer.weights().items() if not np.array_equal(value, before[name])}
        assert any("logits" in name for name in changed)
        assert all("logits" in name for name in changed) is (epochs == 1)


def test_a_short_training_after_a_probe_uses_less_of_the_label_smoothing() -> None:
    """Otherwise most of its gradients are those of the smoothing (Oxford 102, 4 rows per class, 2 epochs: .654 instead of .708)."""
    trainer, losses = trainer_of(label_smoothing=0.9, learning_rate=1e-9, **PROBED), []
    for epochs in (2, PROBED_STEPS):
        events = trainer.train(0, replace(trainer.member.train, epochs=epochs))
        losses += [next(event.loss for event in events if isinstance(event, Epoch))]
    assert losses[0] < 0.1 * losses[1]


def test_a_short_training_after_a_probe_uses_less_of_the_learning_rate_and_a_long_one_all_of_it() -> None:
    probed = member(probe=True, learning_rate=0.01).train
    shares = [share_after_probe(probed, steps) for steps in (2, 20, 100, PROBED_STEPS, 10_000)]
    assert shares == pytest.approx([1e-4, 0.01, 0.25, 1.0, 1.0])
    assert share_after_probe(member(probe=False, learning_rate=0.01).train, 2) == 1.0


def test_the_loss_of_independent_labels_is_the_binary_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    logits, targets, weights = rng.normal(0, 2, (6, 3)), rng.integers(0, 2, (6, 3)), rng.random(6)
    own = 1 / (1 + np.exp(np.where(targets, -logits, logits)))  # the probability of each true label
    for gamma in (0.0, 2.0):  # cross-entropy, focal loss
        loss = label_losses(targets.astype("float32"), logits.astype("float32"), weights, gamma)
        expected = -weights * ((1 - own) ** gamma * np.log(own)).mean(1)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(loss), expected, rtol=1e-5)


def test_multi_label_targets_are_smoothed_each_by_itself_and_scored_as_sets() -> None:
    trainer = trainer_of(SETS, "multilabel_macro_f1", epochs=8, batch=10, label_smoothing=0.1)
    plan = trainer.fold_rows.plan(0, trainer.member.train)
    row = plan.rows[np.flatnonzero(trainer.images.labels[plan.rows] == 3)[0]]
    np.testing.assert_allclose(plan.targets[row], [0.95, 0.95, 0.05])
    assert set(plan.weights[plan.rows]) == {1.0} and not plan.targets[trainer.images.folds == 0].any()
    trained = trainer.train_to_end(0, trainer.member.train)
    oof = trainer.out_of_fold(0, trained)
    assert oof.target == "multi" and oof.probs.dtype == np.float32
    assert oof.probs.min() > 0 and oof.probs.max() < 1 and np.ptp(oof.probs.sum(-1)) > 0.01
    assert trainer.score_of(trainer.out_of_fold(0, trained), 0) > 0.4


def test_a_regression_is_standardised_by_the_training_rows_of_its_fold_and_predicts_in_its_unit() -> None:
    trainer = trainer_of(VALUES, "rmse", epochs=12, batch=10, learning_rate=0.02, ema=0.5)
    plan, values = trainer.fold_rows.plan(2, trainer.member.train), VALUES.of(trainer.images.labels)
    own = values[trainer.images.folds != 2]
    np.testing.assert_allclose(plan.weights[plan.rows], 1 / own.var(), rtol=1e-5)
    trained = trainer.train_to_end(2, trainer.member.train)
    weights = trainer.engine.weights()
    unit = {name.rsplit("unit/", 1)[1]: value for name, value in weights.items() if "unit/" in name}
    np.testing.assert_allclose([unit["mean"], unit["deviation"]], [own.mean(), own.std()], rtol=1e-5)
    assert trained.history[0].loss < 10  # of standardised targets; of raw ones it is a million
    oof = trainer.out_of_fold(2, trained)
    held_out = values[trainer.images.folds == 2]
    error = root_mean_squared_error(held_out, oof.view("identity")[:, 0])
    assert trainer.score_of(trainer.out_of_fold(2, trained), 2) == pytest.approx(error, abs=1e-12)
    assert error < 0.8 * held_out.std()
    again = trainer.predict(weights, trainer.images, np.flatnonzero(trainer.images.folds == 2), ["identity"])
    np.testing.assert_array_equal(again.probs, oof.probs)  # the unit is part of the weights
