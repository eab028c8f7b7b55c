"""A frozen-feature member: the features of its network are stored, a fold model is a head that is fitted to them."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from competition.config.params import Member, Train
from competition.config.plugins import Plugins
from competition.ensemble.metrics import Metric, TargetKind
from competition.input_pipeline.labelled_images import Images
from competition.training.checkpoint import Checkpoints
from competition.training.engine import State
from competition.training.features import FeatureSource, feature_network
from competition.training.fold_rows import STRATUM_ROWS, FoldRows
from competition.training.heads import (
    ONE_THREAD_EACH,
    FittedHead,
    HeadRows,
    fit_best_head,
    head_outputs,
    inner_parts_of,
    probabilities_of,
)
from competition.training.logistic_regression import Alive
from competition.training.trainer import Epoch, EpochSet, Events, Trained, Trainer

BYTES_AT_ONCE = 500_000_000  # of features: heads are fitted side by side, each takes four times its features


class HeadTrainer(Trainer):
    """Fits and predicts any number of folds and trials of one frozen-feature member."""

    def __init__(self, rows: FoldRows, metric: Metric, features: FeatureSource, alive: Alive = lambda: None) -> None:
        """features: of every row that is fitted or predicted.  metric, alive: see Trainer."""
        super().__init__(rows, metric, alive)
        self._features = features
        self._arrays: State = {}  # of the head that was fitted or loaded last
        self._ahead: dict[int, Future[FittedHead]] = {}

    @contextmanager
    def fitting_ahead(self, folds: Sequence[int], train: Train) -> Iterator[None]:
        """Fit the heads of these fold models side by side while the context lasts; train(fold, train) waits for its own.

        Leaving the context waits for those that were begun.
        """
        head = self.member.head
        assert head is not None
        columns = self._features(self.images, np.arange(1), head.views[0]).shape[1]
        at_once = BYTES_AT_ONCE // max(4 * len(head.views) * len(self.images.ids) * columns, 1)
        workers = max(1, min(len(folds), os.cpu_count() or 1, at_once))
        with ThreadPoolExecutor(workers) as pool, ONE_THREAD_EACH(), warnings.catch_warnings():
            # Filters are of all threads, and those of one fit would end those of another.
            warnings.simplefilter("ignore")
            self._ahead = {fold: pool.submit(self._fit, fold, train) for fold in folds}
            try:
                yield
            finally:
                self._ahead = {}
                pool.shutdown(cancel_futures=True)

    def train(
        self, fold: int, train: Train, checkpoints: Checkpoints | None = None, score_epochs: EpochSet = True
    ) -> Events:
        """Fit the head to the training rows of a fold model. It takes seconds: it has one epoch and no checkpoints."""
        self._alive()
        ahead = self._ahead.pop(fold, None)
        fitted = self._fit(fold, train) if ahead is None else ahead.result()
        self._arrays = fitted.arrays
        scores = self._score_held_out(1, fold, is_last=True)
        epoch = Epoch(1, fitted.loss, 0.0, **scores, strength=fitted.strength)
        yield Trained([epoch], epoch)

    def _fit(self, fold: int, train: Train) -> FittedHead:
        plan, head = self.fold_rows.plan(fold, train), self.member.head
        assert head is not None
        images, rows = self.images, plan.rows
        features = np.stack([self._features(images, rows, view) for view in head.views])
        targets = self.fold_rows.targets_of(rows)
        weights = plan.weights[rows] / plan.weights[rows].mean()
        fitted_rows = HeadRows(features, targets, weights, self.fold_rows.classes, self.fold_rows.targets.kind)
        groups = np.arange(len(rows)) if images.groups is None else images.groups[rows]
        strata = self.fold_rows.targets.strata(images.labels[rows], STRATUM_ROWS)
        seed = train.seed * 1_000 + fold
        fitted = fit_best_head(head, fitted_rows, inner_parts_of(strata, groups, seed), seed, self._alive)
        if self.fold_rows.targets.kind == "regression":  # as the held-out loss, in units of the targets' variance
            return replace(fitted, loss=fitted.loss * float(plan.weights[rows].mean()))
        return fitted

    def weights(self) -> State:
        return self._arrays

    def _predict(self, weights: State | None, images: Images, rows: np.ndarray, views: Sequence[str]) -> np.ndarray:
        self._alive()
        self._arrays = self._arrays if weights is None else weights
        kind = self.fold_rows.targets.kind
        outputs = [head_outputs(self._arrays, self._features(images, rows, view), kind) for view in views]
        return np.stack([probabilities_of(output, kind) for output in outputs], axis=1)


class HeadLayer(keras.layers.Layer):
    """The fitted head as a layer: features (B, F) -> logits (B, C), or values (B, 1) of a regression."""

    def __init__(self, arrays: Mapping[str, np.ndarray], kind: TargetKind) -> None:
        super().__init__(name="logits", dtype="float32", trainable=False)
        self._kind = kind
        # Numbers select what is computed, so they are constants and not variables.
        self._numbers = {name: float(value) for name, value in arrays.items() if not value.ndim}
        self._tensors = {
            name: self.add_weight(name=name.rpartition("/")[2], shape=value.shape, trainable=False)
            for name, value in arrays.items()
            if value.ndim
        }
        for name, variable in self._tensors.items():
            variable.assign(arrays[name])

    def call(self, features: Any) -> Any:
        return head_outputs({**self._numbers, **self._tensors}, features, self._kind, keras.ops)


def network_with_head(member: Member, arrays: State, kind: TargetKind, plugins: Plugins) -> keras.Model:
    """The whole network of a fold model: images (B, H, W, 3) of 0..255 -> logits (B, C), or values (B, 1)."""
    backbone = feature_network(member, plugins)
    return keras.Model(backbone.inputs, HeadLayer(arrays, kind)(backbone.outputs[0]), name=backbone.name)
