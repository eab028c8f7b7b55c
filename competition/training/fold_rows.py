"""The rows of one fold model: those it is trained on, with targets and weights, and those it is scored on."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from competition.config.params import ExcludedFolds, Member, Train
from competition.ensemble.predictions import Predictions
from competition.images.batches import TrainingPlan, class_weights, smooth_labels
from competition.images.inner_part import inner_validation
from competition.images.labelled_images import Images
from competition.prepare.targets import SINGLE, Targets

STRATUM_ROWS = 5  # label sets with fewer training rows are pooled in the choice of the inner validation part


@dataclass(frozen=True)
class FoldRows:
    """The rows of every fold model of a member.  images: train rows, then external rows.  classes: C."""

    member: Member
    images: Images
    classes: int
    targets: Targets = SINGLE  # what the label numbers of the images stand for
    # Excluded folds -> probabilities for all other train rows, by teachers that were not trained on the excluded ones; None
    # without teachers.
    soft_labels: Callable[[ExcludedFolds], Predictions] | None = None

    def plan(self, fold: ExcludedFolds, train: Train) -> TrainingPlan:
        """The rows, targets and weights of one fold model.

        Regression: the targets are in their unit and every weight is 1 / variance, so the loss is that of standardised ones.

        Rows: all other folds without the inner validation part, and external images of the sources the member names.
        Nothing depends on a label of the excluded folds.
        """
        images, count = self.images, len(self.images.ids)
        rows = np.setdiff1d(self.usable(fold), self.inner_validation(fold, train))
        labels = images.labels[rows]
        targets, weights = np.zeros((count, self.classes), np.float32), np.zeros(count, np.float32)
        if self.targets.kind == "single":
            targets[rows] = smooth_labels(labels, self.classes, train.label_smoothing)
            weights[rows] = class_weights(labels, self.classes, train.class_weights)
        elif self.targets.kind == "multi":
            smoothing = train.label_smoothing
            targets[rows], weights[rows] = self.targets.of(labels) * (1 - smoothing) + smoothing / 2, 1.0
        else:
            targets[rows] = self.targets.of(labels)[:, None]
            weights[rows] = 1 / deviation(targets[rows]) ** 2
        if self.soft_labels is not None:
            # Teachers predict the competition's own rows only, not external ones.
            share, own_rows = self.member.teacher_weight, rows[images.folds[rows] >= 0]
            soft = self.soft_labels(fold).rows(images.ids[own_rows])
            targets[own_rows] = (1 - share) * targets[own_rows] + share * soft
        balance = labels if train.sampling == "balanced" else None
        return TrainingPlan(rows, targets, weights, train.seed, model_number(fold), balance)

    def inner_validation(self, fold: ExcludedFolds, train: Train) -> np.ndarray:
        """(n,) row numbers of the inner validation part of this fold model; none without patience."""
        if not train.patience:
            return np.zeros(0, int)
        images, rows = self.images, self.usable(fold)
        rows = rows[images.folds[rows] >= 0]
        groups = np.arange(len(images.ids)) if images.groups is None else images.groups
        strata = self.targets.strata(images.labels[rows], STRATUM_ROWS)
        classes = self.classes if self.targets.kind == "single" else int(strata.max(initial=0)) + 1
        number = model_number(fold)
        return rows[inner_validation(strata, groups[rows], train.patience_share, train.seed, number, classes)]

    def usable(self, fold: ExcludedFolds) -> np.ndarray:
        """(n,) numbers of readable rows outside the excluded folds: the competition's own, and this member's external."""
        images, sources = self.images, tuple(f"external/{name}/" for name in self.member.external)
        is_used = (images.folds >= 0) | np.array([name.startswith(sources) for name in images.ids], bool)
        return np.flatnonzero(~np.isin(images.folds, fold) & images.readable & is_used)

    def held_out(self, fold: ExcludedFolds) -> np.ndarray:
        """(n,) numbers of the readable rows of the excluded folds."""
        return np.flatnonzero(np.isin(self.images.folds, fold) & self.images.readable)

    def targets_of(self, rows: np.ndarray) -> np.ndarray:
        """What the labels of these rows stand for: (n,) int, (n, C) bool or (n,) float64."""
        return self.targets.of(self.images.labels[rows])


def deviation(values: np.ndarray) -> float:
    """Standard deviation of the targets of a regression; 1 if all are equal."""
    return float(values.std(dtype=np.float64)) or 1.0


def model_number(fold: ExcludedFolds) -> int:
    """A number for each fold model of a member, different for all: with the seed it seeds the model's random numbers."""
    return fold if isinstance(fold, int) else 1_000 + 50 * fold[0] + fold[1]
