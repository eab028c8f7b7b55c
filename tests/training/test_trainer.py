"""A member on its device: the same model after any earlier training and on any number of devices; no row is lost."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import CLASSES, member, network_trainer, params, pixels_of
from sklearn.metrics import log_loss

from competition.config.errors import UserError
from competition.ensemble.stored_predictions import ViewPredictions
from competition.ensemble.view_transforms import VIEWS
from competition.input_pipeline.batches import prediction_batches
from competition.input_pipeline.decoded_rows import StoredPixels
from competition.input_pipeline.labelled_images import Images
from competition.training import network_trainer as training
from competition.training.checkpoint import Checkpoints
from competition.training.device import open_device
from competition.training.engine import State
from competition.training.fold_rows import FoldRows, inner_part
from competition.training.network_trainer import NetworkTrainer
from competition.training.trainer import Diverged, StepsDone, Stopped, Trained

N, FOLDS = 59, 3  # divides badly by everything
LABELS = np.arange(N) % CLASSES
IDS = np.array([f"i{n:02}" for n in range(N)])
IMAGES = Images(IDS, pixels_of(LABELS), LABELS, np.arange(N) // CLASSES % FOLDS, np.ones(N, bool))
RANDOM = {"dropout": 0.3, "flip": "horizontal", "shift": 0.1, "brightness": 0.1}


def trainer_of(recipe, images=IMAGES, metric="macro_f1", replicas=1, engine=None) -> NetworkTrainer:
    """engine: one that was compiled for the same network and batch."""
    device = open_device(params(f"device.logical_devices={replicas}").device)
    assert device.replicas == replicas
    return network_trainer(FoldRows(recipe, images, CLASSES), metric, device, 7, engine)


@cache
def shared_trainer(replicas: int = 1, random: bool = True) -> NetworkTrainer:
    """One trainer per configuration for all tests: what was trained before must not matter."""
    return trainer_of(member(batch=12, **(RANDOM if random else {})), replicas=replicas)


def trained(
    trainer: NetworkTrainer, fold: int, checkpoints=None, stop=lambda: False, **changes
) -> tuple[Trained, State]:
    for event in trainer.train(fold, replace(trainer.member.train, **changes), checkpoints):
        if isinstance(event, StepsDone):
            event.stop = stop()
    assert isinstance(event, Trained)
    return event, trainer.engine.state()


def assert_identical(first: State, second: State) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_a_member_is_compiled_once_for_all_folds_calls_and_views_and_each_view_keeps_its_column() -> None:
    folds = np.repeat([0, 1, 2], [10, 20, N - 30])
    trainer = trainer_of(member(batch=6, steps_per_call=3), replace(IMAGES, folds=folds), replicas=2)
    network = trainer.engine.network
    for fold in range(3):
        trained(trainer, fold, epochs=1)
    steps = [len(trainer.fold_rows.plan(fold, trainer.member.train).rows) // trainer.engine.batch for fold in range(3)]
    assert len(set(steps)) == 3 and any(n % 3 for n in steps)
    rows, weights = np.arange(11), trainer.engine.weights()
    alone = [trainer.predict(weights, IMAGES, rows, [name]).probs[:, 0] for name in ("identity", "flip_lr", "shift_up")]
    together = trainer.predict(weights, IMAGES, rows, ["shift_up", "identity", "flip_lr"]).probs
    np.testing.assert_array_equal(together, np.stack([alone[2], alone[0], alone[1]], axis=1))
    assert not np.array_equal(alone[0], alone[1])
    assert trainer.engine.network is network and network.experimental_get_tracing_count() == 1
    assert trainer.engine._compiled_loop.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(("replicas", "count"), [(1, 1), (1, 8), (2, 6), (2, 7), (2, N)])
def test_every_row_is_predicted_once_and_stays_with_its_id(replicas: int, count: int) -> None:
    trained(shared_trainer(1, random=False), 0, epochs=1)
    weights = shared_trainer(1, random=False).engine.weights()
    rows = np.random.default_rng(count).permutation(N)[:count]
    predictions = shared_trainer(replicas, random=False).predict(weights, IMAGES, rows, ["identity", "flip_lr"])
    assert predictions.ids.tolist() == IMAGES.ids[rows].tolist() and predictions.probs.shape == (count, 2, CLASSES)
    alone = shared_trainer(1, random=False).predict(weights, IMAGES, np.arange(N), ["identity", "flip_lr"])
    np.testing.assert_allclose(predictions.probs, alone.probs[rows], atol=2e-3)


def test_the_identity_view_is_plain_prediction_to_the_bit() -> None:
    trainer = shared_trainer()
    trained(trainer, 0)
    rows, size = np.arange(N), trainer.engine.predict_batch
    batches = list(prediction_batches(IMAGES.pixels, rows, size))
    views = trainer.engine.probabilities(iter(batches), N, [VIEWS["identity"], VIEWS["shift_up"]])
    whole = np.concatenate(batches).astype(np.float32)
    logits = trainer.engine.model.predict(whole, batch_size=size, verbose=0)
    # Batch after batch: some processors round a softmax differently where it is of another number of rows.
    plain = np.concatenate([tf.nn.softmax(logits[first : first + size]) for first in range(0, len(logits), size)])
    np.testing.assert_array_equal(views[:, 0], plain[:N])
    assert not np.array_equal(views[:, 0], views[:, 1])


def test_a_run_stopped_at_any_point_ends_with_the_same_bits(tmp_path: Path) -> None:
    trainer, changes = shared_trainer(), {"patience": 2, "epochs": 4, "steps_per_call": 1}
    uninterrupted, state = trained(trainer, 0, **changes)
    checkpoints = Checkpoints(tmp_path, "x")
    for _ in range(30):
        calls = iter(range(10_000))
        try:  # stop at the third call
            resumed, after = trained(trainer, 0, checkpoints, lambda calls=calls: next(calls) >= 2, **changes)
            break
        except Stopped:
            trained(trainer, 1, epochs=1)  # something else is trained in between
    assert resumed.history == uninterrupted.history and resumed.selected.epoch == uninterrupted.selected.epoch
    assert_identical(state, after)


def test_a_call_takes_as_many_steps_as_fit_into_its_seconds_and_the_result_is_the_same(monkeypatch) -> None:
    trainer, results = shared_trainer(), []
    monkeypatch.setattr(training, "FIRST_STEPS", 1)
    for seconds, ends in ((0.0, [1, 2, 3, 4, 5, 6, 7, 8, 9]), (1e9, [1, 3, 5, 6, 8, 9])):
        monkeypatch.setattr(training, "CALL_SECONDS", seconds)
        events = list(trainer.train(0, replace(trainer.member.train, epochs=3, steps_per_call=2)))
        assert [event.step for event in events if isinstance(event, StepsDone)] == ends  # an epoch has three steps
        results.append((events[-1], trainer.engine.state()))
    (one_by_one, first_state), (together, second_state) = results
    assert one_by_one.history == together.history
    assert_identical(first_state, second_state)


def test_a_loss_that_is_not_finite_is_an_error_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "x")
    with pytest.raises(Diverged, match=r"lower train\.learning_rate or set train\.clip_norm"):
        trained(shared_trainer(), 0, checkpoints, learning_rate=1e30, clip_norm=0.0, epochs=8)
    checkpoint = checkpoints.latest()
    assert checkpoint is None or all(np.isfinite(value).all() for value in checkpoint.arrays.values())


class Unreadable(StoredPixels):
    """Images that are decoded on each access, of which one raises `error`."""

    shape = IMAGES.pixels.shape

    def __init__(self, row: int, error: Exception) -> None:
        self._row, self._error = row, error

    def read(self, row: int, buffer: np.ndarray) -> None:
        if row == self._row:
            raise self._error
        buffer[...] = IMAGES.pixels[row]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("error", [UserError("image i05: it is cut off"), MemoryError(), OSError(5, "damaged disk")])
def test_an_image_that_cannot_be_read_ends_a_training_or_a_prediction_with_its_own_error(error, replicas) -> None:
    for row in (int(np.flatnonzero(IMAGES.folds == fold)[0]) for fold in (1, 0)):  # trained on, held out
        shared = shared_trainer(replicas)
        images = replace(IMAGES, pixels=Unreadable(row, error))
        trainer = trainer_of(shared.member, images, replicas=replicas, engine=shared.engine)
        with pytest.raises(type(error)) as raised:
            trained(trainer, 0, epochs=1)
        assert raised.value is error


def test_a_model_that_predicts_nan_after_a_finite_loss_is_no_result() -> None:
    """The loss is computed before an update, so the last update may overflow unseen."""
    trainer = shared_trainer()
    trainer.engine.load_weights({name: np.full_like(value, np.nan) for name, value in trainer.weights().items()})
    with pytest.raises(Diverged, match="predicts NaN or infinity for 21 of 21 rows; lower train"):
        trainer.held_out(0)


def test_a_member_may_be_trained_on_smaller_images_than_it_predicts() -> None:
    recipe = replace(member(batch=12, epochs=4, crop=0.6), train_size=8)
    trainer = trainer_of(recipe)
    assert trainer.first_batch(0, recipe.train)[0].shape == (12, 8, 8, 3)
    result = trainer.train_to_end(0, recipe.train)
    assert result.history[-1].loss < result.history[0].loss and {size for _, size in trainer._batches} == {8}
    # Rows are scored at their full size.
    rows = np.arange(7)
    expected = trainer.engine.model(IMAGES.pixels[rows].astype(np.float32))
    predictions = trainer.predict(trainer.engine.weights(), IMAGES, rows, ["identity"])
    np.testing.assert_allclose(predictions.probs[:, 0], keras.ops.softmax(expected), atol=2e-3)


def test_the_first_batch_has_the_size_of_the_last_epoch() -> None:
    images = replace(IMAGES, pixels=pixels_of(LABELS, size=64))
    train = replace(member(batch=12, epochs=2).train, low_resolution_size=0.5)
    trainer = trainer_of(replace(member(batch=12), image_size=64), images)
    for share, size in ((0.0, 64), (0.5, 64), (1.0, 32)):
        batch, _, _ = trainer.first_batch(0, replace(train, low_resolution_epochs=share))
        assert batch.shape == (12, size, size, 3)


def test_patience_keeps_the_epoch_that_is_best_on_rows_neither_trained_on_nor_held_out(tmp_path: Path) -> None:
    trainer = shared_trainer(random=False)
    settings = {"patience": 2, "patience_share": 0.3, "epochs": 6, "learning_rate": 0.3}  # which soon gets worse
    result, _ = trained(trainer, 0, Checkpoints(tmp_path, "x"), **settings)
    scores = [epoch.inner for epoch in result.history]
    assert result.selected.epoch == 1 + int(np.argmax(scores)) < len(scores) and len(set(scores)) > 1
    train = replace(trainer.member.train, **settings)
    inner_rows, training_rows = trainer.fold_rows.inner_validation(0, train), trainer.fold_rows.plan(0, train).rows
    assert sorted([*inner_rows, *training_rows]) == np.flatnonzero(IMAGES.folds != 0).tolist()
    best = trainer._predict(None, IMAGES, inner_rows, ["identity"])[:, 0]
    assert trainer.metric.evaluate(LABELS[inner_rows], best) == pytest.approx(max(scores))
    # Out-of-fold predictions are of these weights, also when a later command finds nothing left to train.
    resumed, _ = trained(trainer, 0, Checkpoints(tmp_path, "x"), **settings)
    for done in (result, resumed):
        np.testing.assert_array_equal(trainer.out_of_fold(0, done).probs, trainer.held_out(0).probs)
        assert trainer.score_of(trainer.out_of_fold(0, done), 0) == pytest.approx(done.selected.held_out)
    held_out, oof = LABELS[IMAGES.folds == 0], trainer.out_of_fold(0, result).view("identity")
    assert result.selected.held_out_loss == pytest.approx(log_loss(held_out, oof, labels=range(CLASSES)))


@pytest.mark.parametrize(
    ("changes", "fold"),
    [
        ({"class_weights": "sqrt", "sampling": "balanced"}, 2),
        ({"patience": 3, "patience_share": 0.3, "epochs": 3, "learning_rate": 0.03, "class_weights": "balanced"}, 0),
    ],
    ids=str,
)
def test_labels_of_the_held_out_rows_do_not_change_the_model(changes: dict, fold: int) -> None:
    states, held_out = [], IMAGES.folds == fold
    trainer = trainer_of(member(batch=12, **changes), metric="log_loss", engine=shared_trainer(random=False).engine)
    for labels in (LABELS, np.where(held_out, 0, LABELS)):  # other labels, other class counts
        trainer.fold_rows = replace(trainer.fold_rows, images=replace(IMAGES, labels=labels))
        trainer.train_to_end(fold, trainer.member.train)
        states.append(trainer.engine.weights())
    assert_identical(*states)


def test_an_unreadable_row_is_not_trained_on_and_gets_the_mean_of_the_others() -> None:
    images = replace(IMAGES, readable=~np.isin(np.arange(N), [4, 50]))
    trainer = trainer_of(member(batch=12), images, engine=shared_trainer(random=False).engine)
    assert not any({4, 50} & {*trainer.fold_rows.plan(fold, trainer.member.train).rows} for fold in (0, 1))
    weights = trainer.engine.weights()
    probs = trainer.predict(weights, images, np.array([3, 4, 5]), ["identity"]).probs[:, 0].astype(np.float32)
    np.testing.assert_allclose(probs[1], (probs[0] + probs[2]) / 2, atol=1e-3)
    none = trainer.predict(weights, images, np.array([4, 50]), ["identity"])
    np.testing.assert_allclose(none.probs, 1 / CLASSES, atol=1e-3)


def test_the_inner_part_depends_on_seed_and_fold_and_never_splits_a_group_of_duplicates() -> None:
    groups, parts = np.random.default_rng(0).integers(0, 60, 200), {}
    for seed, fold in ((1, 0), (1, 1), (2, 0), (2, 1)):
        part, again = (inner_part(groups % 4, groups, 0.2, seed, fold, 4) for _ in range(2))
        assert not set(groups[part]) & set(groups[~part]) and 0.15 < part.mean() < 0.25
        assert part.tobytes() == again.tobytes()
        parts[part.tobytes()] = (seed, fold)
    assert len(parts) == 4


def test_rare_classes_contribute_in_turn_and_keep_one_photo_for_training() -> None:
    labels = np.repeat(np.arange(40), 5)  # a tenth of five rows is none
    chosen_rows = inner_part(labels, np.arange(200), share=0.1, seed=7, fold=0, classes=40)
    assert chosen_rows.sum() == pytest.approx(20, abs=1)
    single = np.concatenate([labels, [40, 41]])  # two classes of one photo
    chosen_rows = inner_part(single, np.arange(202), share=0.5, seed=7, fold=0, classes=42)
    assert not chosen_rows[-2:].any()
    with pytest.raises(UserError, match=r"raise train\.patience_share, or set train\.patience to 0"):
        inner_part(np.arange(6), np.arange(6), share=0.1, seed=7, fold=0, classes=6)


def test_teachers_soften_the_targets_of_the_rows_they_predict() -> None:
    student = replace(member(batch=12, label_smoothing=0.0), teacher=("other",), teacher_weight=0.3)
    for fold in range(FOLDS):
        ids = IMAGES.ids[IMAGES.folds != fold][::-1]  # teachers predict only rows outside the excluded fold
        labels = ViewPredictions(ids.copy(), ("identity",), np.full((len(ids), 1, CLASSES), 1 / CLASSES, np.float32))
        plan = FoldRows(student, IMAGES, CLASSES, soft_labels={fold: labels}).plan(fold, student.train)
        expected = 0.7 * np.eye(CLASSES)[LABELS] + 0.1
        np.testing.assert_allclose(plan.targets[plan.rows], expected[plan.rows], rtol=1e-5)
        assert not plan.targets[IMAGES.folds == fold].any()


def test_members_train_on_the_external_images_they_name_in_every_fold() -> None:
    ids, folds = IDS.astype(object), IMAGES.folds.copy()
    ids[-2:], folds[-2:] = ("external/web/a", "external/other/b"), -1
    images, recipe = replace(IMAGES, ids=ids.astype(str), folds=folds), replace(member(batch=12), external=("web",))
    for fold in range(FOLDS):
        rows = FoldRows(recipe, images, CLASSES).plan(fold, recipe.train).rows
        assert N - 2 in rows and N - 1 not in rows


def test_a_share_of_the_layers_is_trained_and_the_first_ones_keep_their_weights() -> None:
    trainer = trainer_of(member(trained_share=0.5, epochs=2, learning_rate=0.01))
    before = {name: np.array(value) for name, value in trainer.weights().items()}
    trainer.train_to_end(0, trainer.member.train)
    changed = {name for name, value in trainer.weights().items() if (np.array(value) != before[name]).any()}
    # Names begin with the position of their layer.
    trainable = sorted(name for name in before if name.endswith(("kernel", "gamma")))
    assert trainable[0] not in changed and trainable[-1] in changed and "logits" in trainable[-1]
