"""What the label numbers of the index stand for: a class, a set of classes, or a number.

The index, the records, the folds and the search for duplicates know label numbers only. A multi-label competition numbers
its distinct label sets, a regression its distinct values; `Targets.of` turns label numbers into what models and metrics use.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from competition.config.errors import UserError
from competition.config.params import Train
from competition.ensemble.metrics import METRICS, TargetKind

# single: one of C classes | multi: a set of the C classes | ordinal: one of C ordered grades | regression: a number
Target = Literal["single", "multi", "ordinal", "regression"]
KIND_OF: dict[Target, TargetKind] = {
    "single": "single", "multi": "multi", "ordinal": "single", "regression": "regression",
}  # fmt: skip
# Name in params.yaml -> metric of the multi-label competition.
MULTILABEL_NAMES = {name: f"multilabel_{name}" for name in ("macro_f1", "mean_column_auc", "log_loss")}
BINS = 10  # strata of a regression: tenths of the rows by value


@dataclass(frozen=True)
class Targets:
    """table: (L, C) bool of a multi-label competition, (L,) float64 of a regression, empty otherwise; L label numbers."""

    kind: TargetKind
    table: np.ndarray

    def of(self, labels: np.ndarray) -> np.ndarray:
        """(N,) label numbers -> (N,) int classes, (N, C) bool or (N,) float64."""
        return labels if self.kind == "single" else self.table[labels]

    def strata(self, labels: np.ndarray, least_rows: int) -> np.ndarray:
        """(N,) int: what rows are stratified by.  labels: (N,) int of the training rows, all known.

        Multi-label: the label set; the rows of a set with fewer than `least_rows` belong to the rarest class of the set.
        Regression: the tenth of the rows by value (fewer parts if a part had fewer than `least_rows`; equal values stay together).
        """
        if self.kind == "single":
            return labels
        targets = self.of(labels)
        if self.kind == "regression":
            parts = max(1, min(BINS, len(labels) // least_rows))
            edges = np.quantile(targets, np.arange(1, parts) / parts)
            return np.searchsorted(edges, targets, side="right")
        positives = targets.sum(0)
        rarest = np.where(targets, positives, len(labels) + 1).argmin(1)
        rarest[~targets.any(1)] = targets.shape[1]
        is_common = np.bincount(labels, minlength=len(self.table))[labels] >= least_rows
        return np.unique(np.where(is_common, len(positives) + 1 + labels, rarest), return_inverse=True)[1].reshape(-1)

    def class_rows(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """(N, C) bool: the classes of each row.  No column of a regression is true."""
        if self.kind == "single":
            return labels[:, None] == np.arange(classes)
        return self.of(labels) if self.kind == "multi" else np.zeros((len(labels), classes), bool)


SINGLE = Targets("single", np.zeros(0))


def resolve_metric(target: Target, name: str, default: str = "") -> str:
    """The metric of a competition: `default` if `name` is "", else the one that `name` means for this target.

    Raises UserError for a metric of another target.
    """
    name = name or default
    name = MULTILABEL_NAMES.get(name, name) if target == "multi" else name
    kind = METRICS[name].target if name in METRICS else "single"  # a metric of a plugins file scores classes
    if kind != KIND_OF[target]:
        fitting = [one for one, metric in METRICS.items() if metric.target == KIND_OF[target]]
        raise UserError(f"competition.metric: {name} was found, the target is {target}; expected {', '.join(fitting)}")
    return name


def default_metric(target: Target, predicts: str) -> str:
    """The metric of a competition that names none.  predicts: of the competition: label, probabilities or value."""
    if target == "multi":
        return "macro_f1" if predicts == "label" else "mean_column_auc"
    if target in ("ordinal", "regression"):
        return "quadratic_kappa" if target == "ordinal" else "rmse"
    # scikit-learn's default, which most graders use; it differs from macro_f1 if a class has no test row.
    return "macro_f1_present" if predicts == "label" else "log_loss"


def target_of_metric(name: str) -> Target | None:
    """The target that a metric in params.yaml implies; None if it says nothing."""
    if name == "quadratic_kappa":
        return "ordinal"
    kind = METRICS[name].target if name in METRICS else "single"
    return kind if kind in ("multi", "regression") else None


def training_of(kind: TargetKind, train: Train) -> Train:
    """The training as it is for this kind of target.

    The last layer of several labels or of a regression is not solved (`probe`): it alone is trained in the first epoch.
    """
    if kind == "single" or not train.probe:
        return train
    return replace(train, probe=False, freeze_epochs=max(train.freeze_epochs, 1))


def check_training(kind: TargetKind, member: str, train: Train) -> None:
    """Raise UserError for training parameters that are not defined for this kind of target."""
    if kind == "single":
        return
    subject = "multi-label targets" if kind == "multi" else "a regression"
    refused: dict[str, tuple[object, object]] = {
        "class_weights": (train.class_weights, "none"),
        "sampling": (train.sampling, "natural"),
    }
    if kind == "regression":
        refused |= {"cutmix": (train.cutmix, 0.0), "focal_gamma": (train.focal_gamma, 0.0)}
    for key, (value, only) in refused.items():
        if value != only:
            shown, expected = (str(one).lower() for one in (value, only))
            raise UserError(
                f"members.{member}.train.{key}: {shown} was found; it is not defined for {subject}, expected {expected}"
            )
