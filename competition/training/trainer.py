"""One member on one device, with its compiled engine and decoded images: used by tuning, training and prediction."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd
from keras.ops import convert_to_numpy

from competition.config.params import ExcludedFolds, Member, Train
from competition.data.augment import Augmentation
from competition.data.batches import TrainingBatches, TrainingPlan, class_weights, prediction_batches, smooth_labels
from competition.data.cache import CacheBudget, ConcatenatedPixels, Pixels, decode_images
from competition.data.images import Fit
from competition.data.inner_part import inner_validation
from competition.data.loader import Loading
from competition.data.prepared import Prepared
from competition.data.targets import SINGLE, Targets
from competition.ensemble.metrics import metric_named
from competition.ensemble.predictions import Predictions, ViewPredictions, stored_as
from competition.ensemble.views import get_views
from competition.training import loop
from competition.training.batch_augmentation import augmented, is_on_device
from competition.training.checkpoint import Checkpoints
from competition.training.device import Device, auto_precision, host_share, round_up_batch
from competition.training.engine import CompiledIn, Engine, State
from competition.training.engines import make_engine
from competition.training.input_stall import InputStallDetector
from competition.training.model import build
from competition.training.probe import linear_probe, pooled_features, with_head

Progress = Callable[[int, int], None]
STRATUM_ROWS = 5  # label sets with fewer training rows are pooled in the choice of the inner validation part


@dataclass(frozen=True)
class Images:
    """ids: (N,) str.  pixels: (N, H, W, 3) uint8.  labels: (N,) int, -1 = unknown.  readable: (N,) bool.

    folds: (N,) int; -1 = external image, in no fold.
    groups: (N,) int, equal for duplicates of one photo; None: no row has a duplicate.
    """

    ids: np.ndarray
    pixels: Pixels
    labels: np.ndarray
    folds: np.ndarray
    readable: np.ndarray
    groups: np.ndarray | None = None


def load_images(
    prepared: Prepared, parts: Sequence[str], size: int, fit: Fit, budget: CacheBudget, progress: Progress
) -> Images:
    """All images of some parts (train, external, test) at one size, decoded once and cached as `budget` allows."""
    pixels: list[Pixels] = []
    for part in parts:
        rows = prepared.part(part)
        ids, unreadable = rows["id"].to_numpy(str), (rows["problem"] != "").to_numpy()
        files = prepared.records(part)
        pixels.append(decode_images(files, ids, unreadable, size, fit, budget, prepared.digest, progress))
    rows = pd.concat([prepared.part(part) for part in parts], ignore_index=True)
    return Images(
        rows["id"].to_numpy(str),
        pixels[0] if len(pixels) == 1 else ConcatenatedPixels(pixels),
        rows["label"].to_numpy(),
        rows["fold"].to_numpy(),
        (rows["problem"] == "").to_numpy(),
        rows["group"].to_numpy(),
    )


class Trainer:
    """Trains and predicts any number of folds and trials of one member with one compiled engine."""

    def __init__(
        self,
        member: Member,
        images: Images,
        classes: int,
        metric: str,
        device: Device,
        predict_batch: int,
        soft_labels: Callable[[ExcludedFolds], Predictions] | None = None,
        alive: Callable[[], None] = lambda: None,
        name: str = "",
        targets: Targets = SINGLE,
    ) -> None:
        """images: train rows, then external rows.  classes: C.  metric: name of the competition's metric.

        soft_labels: excluded folds -> probabilities for all other train rows, by teachers that were not trained on the
        excluded ones; None without teachers.
        alive: heartbeat, called before every prediction batch.  name: of the member, for callbacks.
        targets: what the label numbers of the images stand for.
        """
        self.name, self.member, self.images, self.metric = name, member, images, metric_named(metric)
        self._classes, self._soft_labels, self._alive = classes, soft_labels, alive
        self._targets = targets
        self.engine = engine_of(member, classes, predict_batch, device, targets)
        self._device = device
        self._batches: dict[tuple[Augmentation, int], TrainingBatches] = {}
        self._features: np.ndarray | None = None  # (N, F) pooled features by the initial weights
        self._scored: dict[int, ViewPredictions] = {}  # last scored epoch -> its out-of-fold predictions

    def train(
        self,
        fold: ExcludedFolds,
        train: Train,
        checkpoints: Checkpoints | None,
        progress: Callable[[int, int, str], None],
        stop: Callable[[], bool],
        watch: bool | Collection[int] = True,
        stall_detector: InputStallDetector | None = None,
        on_epoch: Callable[[loop.Epoch], None] | None = None,
    ) -> loop.Trained:
        """Train on all folds but the excluded ones. The weights are then in the engine.

        fold: one excluded fold, or two for a nested teacher.
        train: the member's parameters, or a trial's with the same batch, dropout and precision, which are compiled in.
        progress: called with (steps done, steps in total, text).  stop: return True to save a checkpoint and stop.
        watch: score the held-out rows after every epoch, or after those in the collection; otherwise only after the last.
        on_epoch: called after every epoch.
        """
        size = self.member.training_size
        small = min(size, max(32, round(size * train.small_size) // 8 * 8))  # backbones need 32 pixels

        def batches_at(epoch: int) -> TrainingBatches:
            return self.training_batches(train, small if epoch < round(train.epochs * train.small_epochs) else size)

        def held_out_score(epoch: int) -> float | None:
            watched = watch if isinstance(watch, bool) else epoch in watch
            if not (watched or epoch == train.epochs):
                return None
            self._scored = {epoch: self.held_out(fold)}
            return self._score_of(self._scored[epoch], fold)

        def held_out_loss(epoch: int) -> float | None:
            return self._loss_of(self._scored[epoch], fold) if epoch in self._scored else None

        def inner_score() -> float:
            probs = self._probabilities(self.images, inner_rows, ["identity"])[:, 0]
            return self.metric.display(self.metric.evaluate(self._targets_of(inner_rows), probs))

        self._scored = {}
        plan, inner_rows = self.plan(fold, train), self.inner_validation_rows(fold, train)
        initial_weights = (lambda: self._probed(plan)) if train.probe else None
        if self._targets.kind == "regression":
            initial_weights = lambda: self._in_unit_of(plan)  # noqa: E731
        run = loop.FoldRun(plan, train, batches_at, checkpoints, initial_weights)
        sign = self.metric.sign
        # SIGTERM reaches hosts at different steps, and one that stops alone leaves the others waiting for it in a step.
        should_stop = lambda: any(self.engine.all_gather(stop()))  # noqa: E731
        callbacks = loop.Callbacks(
            progress, should_stop, held_out_score, held_out_loss, inner_score, sign, stall_detector, on_epoch
        )
        return loop.train_fold(self.engine, run, callbacks)

    def _probed(self, plan: TrainingPlan) -> State:
        """The initial weights, with a last layer fitted to the features of this fold's training rows."""
        if self._features is None:
            rows = np.arange(len(self.images.ids))
            self._features = pooled_features(self.engine.model, self.images.pixels, rows, self.engine.predict_batch)
        rows = plan.rows
        labels, weights = self.images.labels[rows], plan.weights[rows]
        head = linear_probe(self._features[rows], labels, weights, self._classes)
        return with_head(self.engine.weights(), *head)

    def _in_unit_of(self, plan: TrainingPlan) -> State:
        """The initial weights of a regression, with mean and deviation of this fold's training rows in layer "unit"."""
        values = plan.targets[plan.rows]
        unit = {"unit/mean": float(values.mean()), "unit/deviation": _deviation(values)}
        weights = self.engine.weights()
        for name, value in weights.items():
            weights[name] = next(
                (np.full((), one, np.float32) for end, one in unit.items() if name.endswith(end)), value
            )
        return weights

    def _targets_of(self, rows: np.ndarray) -> np.ndarray:
        """What the labels of these rows stand for: (n,) int, (n, C) bool or (n,) float64."""
        return self._targets.of(self.images.labels[rows])

    def plan(self, fold: ExcludedFolds, train: Train) -> TrainingPlan:
        """The rows, targets and weights of one fold model.

        Regression: the targets are in their unit and every weight is 1 / variance, so the loss is that of standardised ones.

        Rows: all other folds without the inner validation part, and external images of the sources the member names.
        Nothing depends on a label of the excluded folds.
        """
        images, count = self.images, len(self.images.ids)
        rows = np.setdiff1d(self._usable_rows(fold), self.inner_validation_rows(fold, train))
        labels = images.labels[rows]
        targets, weights = np.zeros((count, self._classes), np.float32), np.zeros(count, np.float32)
        if self._targets.kind == "single":
            targets[rows] = smooth_labels(labels, self._classes, train.label_smoothing)
            weights[rows] = class_weights(labels, self._classes, train.class_weights)
        elif self._targets.kind == "multi":
            smoothing = train.label_smoothing
            targets[rows], weights[rows] = self._targets.of(labels) * (1 - smoothing) + smoothing / 2, 1.0
        else:
            targets[rows] = self._targets.of(labels)[:, None]
            weights[rows] = 1 / _deviation(targets[rows]) ** 2
        if self._soft_labels is not None:
            # Teachers predict the competition's own rows only, not external ones.
            share, taught = self.member.teacher_weight, rows[images.folds[rows] >= 0]
            targets[taught] = (1 - share) * targets[taught] + share * self._soft_labels(fold).rows(images.ids[taught])
        balance = labels if train.sampling == "balanced" else None
        return TrainingPlan(rows, targets, weights, train.seed, model_number(fold), balance)

    def inner_validation_rows(self, fold: ExcludedFolds, train: Train) -> np.ndarray:
        """(n,) row numbers of the inner validation part of this fold model; none without patience."""
        if not train.patience:
            return np.zeros(0, int)
        images, rows = self.images, self._usable_rows(fold)
        rows = rows[images.folds[rows] >= 0]
        groups = np.arange(len(images.ids)) if images.groups is None else images.groups
        seed, number = train.seed, model_number(fold)
        strata = self._targets.strata(images.labels[rows], STRATUM_ROWS)
        classes = self._classes if self._targets.kind == "single" else int(strata.max(initial=0)) + 1
        chosen = inner_validation(strata, groups[rows], train.patience_share, seed, number, classes)
        return rows[chosen]

    def _usable_rows(self, fold: ExcludedFolds) -> np.ndarray:
        """(n,) numbers of readable rows outside the excluded folds: the competition's own, and this member's external."""
        sources = tuple(f"external/{name}/" for name in self.member.external)
        is_used = (self.images.folds >= 0) | np.array([name.startswith(sources) for name in self.images.ids], bool)
        return np.flatnonzero(~np.isin(self.images.folds, fold) & self.images.readable & is_used)

    def first_batch(self, fold: int, train: Train) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first augmented training batch: (B, H, W, 3) uint8, (B, C) targets, (B,) weights."""
        batches = self.training_batches(train, self.member.training_size).start(self.plan(fold, train))
        images, targets, weights = next(batches.as_numpy_iterator())
        images, targets = (convert_to_numpy(part) for part in augmented(images, targets))
        return images, targets, weights

    def score(self, fold: ExcludedFolds) -> float:
        """The competition's metric on the held-out rows by the weights in the engine, under the identity view."""
        return self._score_of(self.held_out(fold), fold)

    def _score_of(self, probs: ViewPredictions, fold: ExcludedFolds) -> float:
        labels = self._targets_of(self._held_out_rows(fold))
        return self.metric.display(self.metric.evaluate(labels, probs.view("identity")))

    def _loss_of(self, probs: ViewPredictions, fold: ExcludedFolds) -> float:
        """Mean loss of held-out rows with plain targets: log loss, or the squared error in units of the targets' variance."""
        targets, output = self._targets_of(self._held_out_rows(fold)), probs.view("identity")
        if self._targets.kind == "regression":
            deviation = _deviation(self._targets_of(self._usable_rows(fold)))
            return float(np.mean(((output[:, 0] - targets) / deviation) ** 2))
        metric = metric_named("log_loss" if self._targets.kind == "single" else "multilabel_log_loss")
        return metric.display(metric.evaluate(targets, output))

    def out_of_fold(self, fold: ExcludedFolds, trained: loop.Trained) -> ViewPredictions:
        """Out-of-fold predictions of the model that `train` has just trained; those of its last score if still valid."""
        if trained.kept_epoch not in self._scored:
            self._scored = {trained.kept_epoch: self.held_out(fold)}
        return self._scored[trained.kept_epoch]

    def kept_score(self, fold: ExcludedFolds, trained: loop.Trained) -> float:
        """The metric of out_of_fold()."""
        return self._score_of(self.out_of_fold(fold, trained), fold)

    def held_out(self, fold: ExcludedFolds) -> ViewPredictions:
        """Out-of-fold probabilities by the weights in the engine, under the identity view.

        Raises Diverged if they are not finite: the last update may have overflowed after a loss that was finite.
        """
        rows = self._held_out_rows(fold)
        probs = self._probabilities(self.images, rows, ["identity"])
        if not np.isfinite(probs).all():
            raise loop.Diverged(
                f"the model predicts NaN or infinity for {int((~np.isfinite(probs)).reshape(len(rows), -1).any(1).sum())} of "
                f"{len(rows)} held-out rows; lower train.learning_rate or set train.clip_norm"
            )
        return self._predictions(self.images.ids[rows], ("identity",), probs)

    def held_out_targets(self, fold: ExcludedFolds) -> np.ndarray:
        """Targets of the rows of held_out(), in their order: (n,) int, (n, C) bool or (n,) float64."""
        return self._targets_of(self._held_out_rows(fold))

    def _held_out_rows(self, fold: ExcludedFolds) -> np.ndarray:
        return np.flatnonzero(np.isin(self.images.folds, fold) & self.images.readable)

    def load_weights(self, weights: State, image_views: int) -> None:
        """Load the weights of a fold model that is about to predict so many image-views.

        Rows that are compared with each other, as out-of-fold and test rows are, are predicted after one call.
        """
        self.engine.load_weights(weights)
        self.engine.prepare_prediction(image_views, self.member.image_size)

    def predict(self, weights: State | None, images: Images, rows: np.ndarray, views: Sequence[str]) -> ViewPredictions:
        """Predict every row of `rows` under every view.

        weights: of a fold model; None: those in the engine.
        An unreadable row gets the mean over the readable ones, an estimate of the class frequencies.
        """
        if weights is not None:
            self.load_weights(weights, len(rows) * len(views))
        is_readable = images.readable[rows]
        probs = np.zeros((len(rows), len(views), self._classes), np.float32)
        if is_readable.any():
            probs[is_readable] = self._probabilities(images, rows[is_readable], views)
        probs[~is_readable] = probs[is_readable].mean(0) if is_readable.any() else 1 / self._classes
        return self._predictions(images.ids[rows], tuple(views), probs)

    def _predictions(self, ids: np.ndarray, views: tuple[str, ...], probs: np.ndarray) -> ViewPredictions:
        kind = self._targets.kind
        return ViewPredictions(ids, views, probs.astype(stored_as(kind)), kind)

    def _probabilities(self, images: Images, rows: np.ndarray, views: Sequence[str]) -> np.ndarray:
        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for batch in prediction_batches(images.pixels, rows, self.engine.predict_batch):
                self._alive()
                yield batch

        return self.engine.probabilities(batches(), rows, get_views(views))

    def training_batches(self, train: Train, size: int) -> TrainingBatches:
        """Training batches at one image size; the same object for the same augmentation and size."""
        key = (augmentation_of(train), size)
        if key not in self._batches:
            pixels, batch, device = self.images.pixels, self.engine.batch, self._device
            share = tuple(host_share(device, batch).tolist())
            loading = Loading(device.threads, device.batches_ahead, share, is_on_device(device))
            self._batches[key] = TrainingBatches(pixels, self._classes, batch, *key, loading)
        return self._batches[key]


def engine_of(member: Member, classes: int, predict_batch: int, device: Device, targets: Targets = SINGLE) -> Engine:
    """The compiled engine of a member, with its precision chosen and its batches rounded up for the device."""
    train = member.train
    precision = auto_precision(device) if train.precision == "auto" else train.precision
    resolved = replace(member, train=replace(train, precision=precision))
    is_fit, scale_loss = train.loop == "fit", precision == "float16"
    return make_engine(
        lambda: build(resolved, classes, targets.kind),
        round_up_batch(train.batch, device.replicas * train.accumulate),
        round_up_batch(predict_batch, device.replicas),
        device,
        CompiledIn(train.accumulate, train.ema > 0, is_fit, targets.kind, scale_loss),
    )


def _deviation(values: np.ndarray) -> float:
    """Standard deviation of the targets of a regression; 1 if all are equal."""
    return float(values.std(dtype=np.float64)) or 1.0


def model_number(fold: ExcludedFolds) -> int:
    """A number for each fold model of a member, different for all: with the seed it seeds the model's random numbers."""
    return fold if isinstance(fold, int) else 1_000 + 50 * fold[0] + fold[1]


def augmentation_of(train: Train) -> Augmentation:
    """The augmentation parameters among the training parameters."""
    options = {field.name: getattr(train, field.name) for field in fields(Augmentation)}
    return Augmentation(**{**options, "augment": tuple(train.augment.items())})


def restricted_to_folds(images: Images, folds: Sequence[int]) -> Images:
    """The same images, with rows of all other folds marked unreadable; external rows (fold -1) stay."""
    return replace(images, readable=images.readable & ((images.folds < 0) | np.isin(images.folds, folds)))


def sample_rows(images: Images, most: int, seed: int) -> Images:
    """A random sample of at most `most` rows, in their order."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(images.ids))[:most])
    return replace(
        images,
        ids=images.ids[rows],
        pixels=images.pixels[rows],
        labels=images.labels[rows],
        folds=images.folds[rows],
        readable=images.readable[rows],
        groups=None if images.groups is None else images.groups[rows],
    )
