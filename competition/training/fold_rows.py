"""The rows of one fold model: those it is trained on, with targets and weights, and those it is scored on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.config.params import Member, Train
from competition.ensemble.stored_predictions import ViewPredictions
from competition.input_pipeline.batches import TrainingPlan, class_weights, smooth_labels
from competition.input_pipeline.labelled_images import Images
from competition.prepare.targets import SINGLE, Targets

STRATUM_ROWS = 5  # label sets with fewer training rows are pooled in the choice of the inner validation part


@dataclass(frozen=True)
class FoldRows:
    """The rows of every fold model of a member.  images: train rows, then external rows.  classes: C."""

    member: Member
    images: Images
    classes: int
    targets: Targets = SINGLE  # what the label numbers of the images stand for
    # Fold -> probabilities of all train rows of other folds, by teachers that were not trained on this one; None without teachers.
    soft_labels: Mapping[int, ViewPredictions] | None = None

    def plan(self, fold: int, train: Train) -> TrainingPlan:
        """The rows, targets and weights of one fold model.

        Regression: the targets are in their unit and every weight is 1 / variance, so the loss is that of standardised ones.

        Rows: all other folds without the inner validation part, and external images of the sources the member names.
        Nothing depends on a label of the held-out fold.
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
            soft = self.soft_labels[fold].at(images.ids[own_rows]).view("identity")
            targets[own_rows] = (1 - share) * targets[own_rows] + share * soft
        balance = labels if train.sampling == "balanced" else None
        return TrainingPlan(rows, targets, weights, train.seed, fold, balance)

    def inner_validation(self, fold: int, train: Train) -> np.ndarray:
        """(n,) row numbers of the inner validation part of this fold model; none without patience."""
        if not train.patience:
            return np.zeros(0, int)
        images, rows = self.images, self.usable(fold)
        rows = rows[images.folds[rows] >= 0]
        groups = np.arange(len(images.ids)) if images.groups is None else images.groups
        strata = self.targets.strata(images.labels[rows], STRATUM_ROWS)
        classes = self.classes if self.targets.kind == "single" else int(strata.max(initial=0)) + 1
        return rows[inner_part(strata, groups[rows], train.patience_share, train.seed, fold, classes)]

    def usable(self, fold: int) -> np.ndarray:
        """(n,) numbers of readable rows outside the held-out fold: the competition's own, and this member's external."""
        images, sources = self.images, tuple(f"external/{name}/" for name in self.member.external)
        is_used = (images.folds >= 0) | np.array([name.startswith(sources) for name in images.ids], bool)
        return np.flatnonzero((images.folds != fold) & images.readable & is_used)

    def held_out(self, fold: int) -> np.ndarray:
        """(n,) numbers of the readable rows of the fold."""
        return np.flatnonzero((self.images.folds == fold) & self.images.readable)

    def targets_of(self, rows: np.ndarray) -> np.ndarray:
        """What the labels of these rows stand for: (n,) int, (n, C) bool or (n,) float64."""
        return self.targets.of(self.images.labels[rows])


def deviation(values: np.ndarray) -> float:
    """Standard deviation of the targets of a regression; 1 if all are equal."""
    return float(values.std(dtype=np.float64)) or 1.0


def inner_part(labels: np.ndarray, groups: np.ndarray, share: float, seed: int, fold: int, classes: int) -> np.ndarray:
    """Choose the inner validation rows of a fold model, about `share` of every class. Returns (n,) bool.

    labels, groups: (n,) int of its training rows; a group (duplicates of one photo) is never split.
    The choice depends on (seed, fold) and these rows only, so that a single fold can be trained again. At least one group
    of every class remains for training. The rounding error of a class is carried to the next one, because a tenth of five
    rows rounds to none.
    Raises UserError if no row can be chosen.
    """
    rng = np.random.default_rng([seed, fold])
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    sizes, group_class = np.bincount(group), labels[first]
    is_chosen = np.zeros(len(sizes), bool)  # per group
    due = 0.0  # rows still to be chosen
    for number in rng.permutation(classes):
        candidates = rng.permutation(np.flatnonzero(group_class == number))
        due += share * sizes[candidates].sum()
        for candidate in candidates[:-1]:
            if sizes[candidate] < due + 0.5:
                is_chosen[candidate] = True
                due -= sizes[candidate]
    if not is_chosen.any():
        raise UserError(
            f"train.patience: none of {len(labels)} training rows can be held out to choose the epoch (at least one photo of "
            "each class remains for training); raise train.patience_share, or set train.patience to 0"
        )
    return is_chosen[group]
