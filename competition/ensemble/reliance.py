"""What an honest score relies on: photos of the same series in other folds, and test rows like training rows."""

from dataclasses import dataclass

import numpy as np

from competition.ensemble.bootstrap import hard
from competition.ensemble.metrics import Metric

DRAWS = 200  # importance resamples behind a weighted score
VALUES_AT_MOST = 400_000_000  # rows x classes x draws of a metric of probabilities


@dataclass(frozen=True, slots=True)
class Accuracy:
    """rows: how many.  value: the share that is right.  error: its standard error, whole series drawn together."""

    rows: int
    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Weighted:
    """A score of weighted rows; they are worth as much as `effective_rows` rows of equal weight (Kish 1965)."""

    value: float
    error: float
    effective_rows: float


def accuracy(labels: np.ndarray, output: np.ndarray, clusters: np.ndarray) -> Accuracy:
    """labels: (N,) int.  output: (N,) labels or (N, C) probabilities.  clusters: (N,) int; rows of one depend on each other.

    The error is at least that of one more right and one more wrong row (Laplace), so it is never 0.
    """
    right = hard(output) == labels
    rows, value = len(right), float(right.mean())
    _, which = np.unique(clusters, return_inverse=True)
    sums = np.bincount(which, weights=right - value)
    smoothed = (right.sum() + 1) / (rows + 2)
    least = np.sqrt(smoothed * (1 - smoothed) / rows)
    return Accuracy(rows, value, float(max(np.sqrt((sums**2).sum()) / rows, least)))


def weighted_score(
    labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int, weights: np.ndarray, seed: int
) -> Weighted:
    """The score that the rows would have in the proportions of `weights`, (N,) above 0, by importance resampling.

    N rows are drawn in these proportions, DRAWS times; the mean is the score. The error is the deviation of the draws,
    scaled from N rows to the effective ones.
    """
    rows = len(labels)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    draws = DRAWS if output.ndim == 1 else int(np.clip(VALUES_AT_MOST // output.size, 20, DRAWS))
    rng, scores = np.random.default_rng(seed), []
    for _ in range(draws):
        chosen = rng.choice(rows, rows, p=weights / weights.sum())
        if output.ndim == 1:
            scores.append(metric.score_labels(labels[chosen], output[chosen], classes))
        else:
            scores.append(metric.score(labels[chosen], output[chosen]))
    return Weighted(float(np.mean(scores)), float(np.std(scores) * np.sqrt(rows / effective)), effective)
