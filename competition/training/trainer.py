"""One member on one device, with its compiled engine and decoded images: used by tuning, training and prediction."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial

import keras
import numpy as np

from competition.config.params import ExcludedFolds, Head, Train
from competition.ensemble.view_transforms import get_views
from competition.images.augment import Augmentation
from competition.images.batch_threads import Loading
from competition.images.batches import TrainingBatches, TrainingPlan, prediction_batches, steps_per_epoch
from competition.images.decoded_rows import Pixels
from competition.images.labelled_images import Images
from competition.prepare.targets import training_of
from competition.training import loop
from competition.training.device import Device, host_share
from competition.training.device_augmentation import augmented, augments_on_device
from competition.training.engine import Engine, State
from competition.training.engines import engine_of
from competition.training.fold_rows import FoldRows, deviation
from competition.training.heads import HeadRows, fit_best_head, inner_parts_of
from competition.training.scorer import DEFAULTS, FoldScorer, TrainingOptions


class Trainer(FoldScorer):
    """Trains and predicts any number of folds and trials of one member with one compiled engine."""

    def __init__(
        self,
        rows: FoldRows,
        metric: str,
        device: Device,
        predict_batch: int,
        alive: Callable[[], None] = lambda: None,
        engine: Engine | None = None,
    ) -> None:
        """metric: name of the competition's metric.  predict_batch: images in a prediction batch.

        alive: heartbeat, called before every prediction batch.
        engine: one of this member that was compiled earlier; None compiles it.
        """
        super().__init__(rows, metric)
        self._device, self._alive = device, alive
        self.engine = engine or engine_of(rows.member, rows.classes, predict_batch, device, rows.targets)
        self._batches: dict[tuple[Augmentation, int], TrainingBatches] = {}
        self._features: np.ndarray | None = None  # (N, F) pooled features by the initial weights

    def train(self, fold: ExcludedFolds, train: Train, options: TrainingOptions = DEFAULTS) -> loop.Events:
        """Train on all folds but the excluded ones; yield what happens, at last Trained. The weights are then in the engine.

        fold: one excluded fold, or two for a nested teacher.
        train: the member's parameters, or a trial's with the same batch, dropout and precision, which are compiled in.
        Nothing is trained until the events are taken: see train_to_end().
        """
        train, size = training_of(self.rows.targets.kind, train), self.member.training_size
        small = min(size, max(32, round(size * train.low_resolution_size) // 8 * 8))  # backbones need 32 pixels
        small_epochs = round(train.epochs * train.low_resolution_epochs)
        plan, inner_rows = self.rows.plan(fold, train), self.rows.inner_validation(fold, train)
        steps = train.epochs * steps_per_epoch(len(plan.rows), self.engine.batch)
        if (share := loop.share_after_probe(train, steps)) < 1:
            plan = self.rows.plan(fold, replace(train, label_smoothing=share * train.label_smoothing))

        def scores_after(epoch: int) -> loop.Scores:
            scores: loop.Scores = {}
            if train.patience:
                probs = self._probabilities(self.images, inner_rows, ["identity"])[:, 0]
                scores["inner"] = self.metric.display(self.metric.evaluate(self.rows.targets_of(inner_rows), probs))
            chosen = options.score_epochs
            is_scored = chosen if isinstance(chosen, bool) else epoch in chosen
            is_last = epoch == train.epochs
            if epoch and (is_scored or is_last):
                scores |= self._score_held_out(epoch, fold, is_last)
            return scores

        self._scored = {}
        has_own_layer = train.probe or self.rows.targets.kind == "regression"
        run = loop.FoldRun(
            plan,
            train,
            batches_at=lambda epoch: self.training_batches(train, small if epoch < small_epochs else size),
            scores_after=scores_after,
            score_sign=self.metric.sign,
            checkpoints=options.checkpoints,
            initial_weights=partial(self._initial_weights, plan) if has_own_layer else None,
        )
        yield from loop.train_fold(self.engine, run, options.stall_detector)

    def weights(self) -> State:
        return self.engine.weights()

    def load_weights(self, weights: State) -> None:
        self.engine.load_weights(weights)

    def _initial_weights(self, plan: TrainingPlan) -> State:
        """The initial weights, with a layer that depends on this fold's training rows.

        A regression: mean and deviation of their targets in layer "unit"; else a last layer fitted to their features.
        """
        rows = plan.rows
        if self.rows.targets.kind == "regression":
            unit = {"unit/mean": plan.targets[rows].mean(), "unit/deviation": deviation(plan.targets[rows])}
            replaced = {name: np.full((), value, np.float32) for name, value in unit.items()}
        else:
            if self._features is None:
                every_row = np.arange(len(self.images.ids))
                model, batch = self.engine.model, self.engine.predict_batch
                self._features = pooled_features(model, self.images.pixels, every_row, batch)
            labels, weights = self.images.labels[rows], plan.weights[rows]
            groups = np.arange(len(rows)) if self.images.groups is None else self.images.groups[rows]
            kernel, bias = linear_probe(self._features[rows], labels, weights, self.rows.classes, groups, plan.seed)
            replaced = {"logits/kernel": kernel, "logits/bias": bias}
        return {
            name: next((new for ending, new in replaced.items() if name.endswith(ending)), value)
            for name, value in self.engine.weights().items()
        }

    def first_batch(self, fold: int, train: Train) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first augmented training batch: (B, H, W, 3) uint8, (B, C) targets, (B,) weights."""
        batches = self.training_batches(train, self.member.training_size).start(self.rows.plan(fold, train))
        images, targets, weights = next(batches.as_numpy_iterator())
        images, targets = (keras.ops.convert_to_numpy(part) for part in augmented(images, targets))
        return images, targets, weights

    def _probabilities(self, images: Images, rows: np.ndarray, views: Sequence[str]) -> np.ndarray:
        batches = prediction_batches(images.pixels, rows, self.engine.predict_batch, lambda begun: self._alive())
        return self.engine.probabilities(batches, len(rows), get_views(views))

    def training_batches(self, train: Train, size: int) -> TrainingBatches:
        """Training batches at one image size; the same object for the same augmentation and size."""
        key = (augmentation_of(train), size)
        if key not in self._batches:
            pixels, batch, device = self.images.pixels, self.engine.batch, self._device
            share = tuple(host_share(device, batch).tolist())
            loading = Loading(device.threads, share=share, on_device=augments_on_device(device))
            self._batches[key] = TrainingBatches(pixels, self.rows.classes, batch, *key, loading)
        return self._batches[key]


def augmentation_of(train: Train) -> Augmentation:
    """The augmentation parameters among the training parameters."""
    options = {field.name: getattr(train, field.name) for field in fields(Augmentation)}
    return Augmentation(**{**options, "augment": tuple(train.augment.items())})


# Linear probing: the last layer is fitted to the pretrained features before fine-tuning, which distorts the features less than
# fine-tuning from a random last layer (Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features and Underperform
# Out-of-Distribution"). The features take one pass without gradients for all folds.
PROBE = Head("linear", strengths=(0.003, 0.01, 0.1, 1.0))


def pooled_features(model: keras.Model, pixels: Pixels, rows: np.ndarray, batch: int) -> np.ndarray:
    """Input of the last layer for each row, (len(rows), F) float32, by the model's current weights, without augmentation."""
    backbone = keras.Model(model.inputs, model.get_layer("logits").input)
    # Compiled, which takes a third of the memory and a quarter of the time of calling the model.
    features = [
        backbone.predict_on_batch(images.astype(np.float32)) for images in prediction_batches(pixels, rows, batch)
    ]
    return np.concatenate(features)[: len(rows)].astype(np.float32)


def linear_probe(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, classes: int, groups: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(kernel (F, C), bias (C,)) of a logistic regression fitted on standardised features, for unstandardised ones.

    Its penalty and its temperature are chosen within these rows, as those of a frozen-feature member: no constant suits both six
    and six hundred rows per class.
    features: (n, F).  labels: (n,) int.  weights: (n,) of the rows.  groups: (n,) int; duplicates of one photo stay together.
    A class without rows gets the lowest bias.
    """
    rows = HeadRows(features[None], labels, weights / weights.mean(), classes, "single", may_root=False)
    head = fit_best_head(PROBE, rows, inner_parts_of(labels, groups, seed), seed).arrays
    factor = float(head.get("head/factor", np.ones(())))
    kernel = head["head/kernel"] / head["head/scale"][:, None]
    bias = head["head/bias"] - head["head/mean"] @ kernel
    return (kernel * factor).astype(np.float32), (bias * factor).astype(np.float32)
