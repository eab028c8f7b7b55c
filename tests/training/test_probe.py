"""Linear probing: the features are the inputs of the last layer, and the layer agrees with scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from builders import CLASSES, member, params, pixels_of
from sklearn.linear_model import LogisticRegression

from competition.images.labelled_images import Images
from competition.prepare.targets import Targets
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.loop import PROBED_STEPS, Epoch, share_after_probe
from competition.training.scorer import save_fold_model
from competition.training.trainer import PROBE, Trainer, linear_probe


def test_a_probe_is_scikit_learns_regression_on_standardised_features() -> None:
    random, labels = np.random.default_rng(0), np.arange(60) % CLASSES
    features = (random.normal(size=(60, 5)) * [1, 10, 0.1, 3, 1] + labels[:, None]).astype(np.float32)
    weights = random.uniform(0.5, 2, 60)
    kernel, bias = linear_probe(features, labels, weights, CLASSES, np.arange(60))
    standard = (features - features.mean(0)) / (features.std(0) + 1e-6)
    logits = features @ kernel + bias
    agreements = []
    for strength in PROBE.strengths:
        reference = LogisticRegression(C=strength, max_iter=300)
        reference.fit(standard, labels, sample_weight=weights / weights.mean())
        expected = reference.decision_function(standard)
        agreements.append(np.corrcoef(logits.ravel(), expected.ravel())[0, 1])  # up to the temperature
    assert max(agreements) > 0.9995


def trainer_of(**train: object) -> Trainer:
    """Two folds of images whose class can be seen."""
    labels = np.arange(97) % CLASSES
    folds = np.arange(len(labels)) // CLASSES % 2
    ids = np.array([f"i{n}" for n in range(len(labels))])
    images = Images(ids, pixels_of(labels), labels, folds, np.ones(len(labels), bool))
    recipe = member(probe=True, warmup=0.0, freeze_norm=True, **train)  # type: ignore[arg-type]
    return Trainer(FoldRows(recipe, images, CLASSES), "accuracy", open_device(params().device), 8)


def test_training_that_destroys_the_probed_head_ends_with_that_head_where_rows_were_kept_to_see_it(tmp_path) -> None:
    trainer = trainer_of(epochs=4, learning_rate=50.0, patience=2, patience_share=0.3)
    trained = trainer.train_to_end(0, trainer.member.train)
    assert trained.selected_epoch == 0 and len(trained.history) == 2
    inner = [epoch.inner for epoch in trained.history]
    assert trained.selected.inner == trained.start_inner > max(inner)  # type: ignore[operator, type-var]
    probed = trainer._initial_weights(trainer.rows.plan(0, trainer.member.train))
    for name, value in trainer.weights().items():
        np.testing.assert_array_equal(value, probed[name])
    result = save_fold_model(trainer, 0, trained, tmp_path)[1]
    assert result["epoch"] == 0 and result["held_out"] == trainer.score_of(trainer.held_out(0), 0) > 0.6


def test_of_several_labels_the_last_layer_alone_is_trained_first() -> None:
    labels = np.arange(48) % CLASSES
    images = Images(np.arange(48).astype(str), pixels_of(labels), labels, np.arange(48) // 24, np.ones(48, bool))
    recipe, sets = member(probe=True, warmup=0.0, freeze_norm=True), np.eye(CLASSES, dtype=bool)
    rows = FoldRows(recipe, images, CLASSES, Targets("multi", sets))
    trainer = Trainer(rows, "multilabel_macro_f1", open_device(params().device), 8)
    before = trainer.weights()
    for epochs in (1, 2):
        trainer.train_to_end(0, replace(recipe.train, epochs=epochs))
        changed = {name for name, value in trainer.weights().items() if not np.array_equal(value, before[name])}
        assert any("logits" in name for name in changed)
        assert all("logits" in name for name in changed) is (epochs == 1)


def test_a_short_training_after_a_probe_uses_less_of_the_label_smoothing() -> None:
    """Otherwise most of its gradients are those of the smoothing (Oxford 102, 4 rows per class, 2 epochs: .654 instead of .708)."""

    trainer, losses = trainer_of(label_smoothing=0.9, learning_rate=1e-9), []
    for epochs in (2, PROBED_STEPS):
        events = trainer.train(0, replace(trainer.member.train, epochs=epochs))
        losses += [next(event.loss for event in events if isinstance(event, Epoch))]
    assert losses[0] < 0.1 * losses[1]


def test_a_short_training_after_a_probe_uses_less_of_the_learning_rate_and_a_long_one_all_of_it() -> None:
    probed = member(probe=True, learning_rate=0.01).train
    shares = [share_after_probe(probed, steps) for steps in (2, 20, 100, PROBED_STEPS, 10_000)]
    assert shares == pytest.approx([1e-4, 0.01, 0.25, 1.0, 1.0])
    assert share_after_probe(member(probe=False, learning_rate=0.01).train, 2) == 1.0
