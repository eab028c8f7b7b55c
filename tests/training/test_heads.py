"""The heads of multi-label and regression members: their losses, targets, units and predictions."""

import keras
import numpy as np
import pytest
from builders import CLASSES, member, params, pixels_of
from sklearn.metrics import log_loss, root_mean_squared_error

from competition.config.params import Member
from competition.images.labelled_images import Images
from competition.prepare.targets import Targets
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.optimizer import label_losses
from competition.training.trainer import Trainer

N, FOLDS = 60, 3
IDS = np.array([f"i{n:02}" for n in range(N)])
SETS = Targets("multi", np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]], bool))
VALUES = Targets("regression", np.array([1000.0, 1010.0, 1020.0]))


def trainer_of(targets: Targets, metric: str, soft_labels: object = None, **train: object) -> Trainer:
    labels = np.arange(N) % len(targets.table)
    brightest = (
        np.where(targets.table[labels].any(1), targets.table[labels].argmax(1), 0) if targets is SETS else labels
    )
    images = Images(IDS, pixels_of(brightest), labels, np.arange(N) // 5 % FOLDS, np.ones(N, bool))
    small: Member = member(batch=10, label_smoothing=0.1, **train)
    device = open_device(params().device)
    classes = CLASSES if targets is SETS else 1
    return Trainer(FoldRows(small, images, classes, targets, soft_labels), metric, device, 8)  # type: ignore[arg-type]


def test_the_loss_of_independent_labels_is_the_binary_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    logits, targets, weights = rng.normal(0, 2, (6, 3)), rng.integers(0, 2, (6, 3)), rng.random(6)
    probs = 1 / (1 + np.exp(-logits))
    expected = [log_loss(y, p, labels=[0, 1]) for y, p in zip(targets, probs)]
    single, focal = (
        keras.ops.convert_to_numpy(label_losses(targets.astype("float32"), logits.astype("float32"), weights, gamma))
        for gamma in (0.0, 2.0)
    )
    np.testing.assert_allclose(single, weights * expected, rtol=1e-5)
    wrongness = np.where(targets == 1, 1 - probs, probs) ** 2
    own = np.where(targets == 1, probs, 1 - probs)
    np.testing.assert_allclose(focal, -weights * (wrongness * np.log(own)).mean(1), rtol=1e-4)


def test_multi_label_targets_are_smoothed_each_by_itself_and_scored_as_sets() -> None:
    trainer = trainer_of(SETS, "multilabel_macro_f1", epochs=8)
    plan = trainer.rows.plan(0, trainer.member.train)
    row = plan.rows[np.flatnonzero(trainer.images.labels[plan.rows] == 3)[0]]
    np.testing.assert_allclose(plan.targets[row], [0.95, 0.95, 0.05])
    assert set(plan.weights[plan.rows]) == {1.0} and not plan.targets[trainer.images.folds == 0].any()
    trained = trainer.train_to_end(0, trainer.member.train)
    oof = trainer.out_of_fold(0, trained)
    assert oof.target == "multi" and oof.probs.dtype == np.float32
    assert oof.probs.min() > 0 and oof.probs.max() < 1 and np.ptp(oof.probs.sum(-1)) > 0.01
    assert trainer.score_of(trainer.out_of_fold(0, trained), 0) > 0.4


def test_a_regression_is_standardised_by_the_training_rows_of_its_fold_and_predicts_in_its_unit() -> None:
    trainer = trainer_of(VALUES, "rmse", epochs=12, learning_rate=0.02, ema=0.5)
    plan, values = trainer.rows.plan(2, trainer.member.train), VALUES.of(trainer.images.labels)
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
