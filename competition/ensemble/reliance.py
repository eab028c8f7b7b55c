"""Checks of two assumptions of the honest score: no photo series across folds, and test rows like training rows."""

from dataclasses import dataclass

import numpy as np

from competition.ensemble.metrics import Metric, default_labels

DRAWS = 200  # importance resamples behind a weighted score
VALUES_AT_MOST = 400_000_000  # rows x classes x draws of a metric of probabilities


@dataclass(frozen=True, slots=True)
class Accuracy:
    """rows: number of rows.  value: share of correct rows.  error: its standard error, clustered by series."""

    rows: int
    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Weighted:
    """Score of weighted rows.  effective_rows: effective sample size (Kish 1965)."""

    value: float
    error: float
    effective_rows: float


def accuracy(labels: np.ndarray, output: np.ndarray, clusters: np.ndarray) -> Accuracy:
    """labels: (N,) int.  output: (N,) labels or (N, C) probabilities.  clusters: (N,) int; rows of one cluster are dependent.

    Multi-label: labels (N, C) bool; a row is correct if all its labels are.

    The error is at least that of one more correct and one more wrong row (Laplace), so it is never 0.
    """
    correct = default_labels(output, "multi" if labels.ndim == 2 else "single") == labels
    correct = correct.all(1) if correct.ndim == 2 else correct
    rows, value = len(correct), float(correct.mean())
    _, cluster = np.unique(clusters, return_inverse=True)
    sums = np.bincount(cluster, weights=correct - value)
    smoothed = (correct.sum() + 1) / (rows + 2)
    least = np.sqrt(smoothed * (1 - smoothed) / rows)
    return Accuracy(rows, value, float(max(np.sqrt((sums**2).sum()) / rows, least)))


def weighted_score(
    labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int, weights: np.ndarray, seed: int
) -> Weighted:
    """Score of rows drawn in proportion to `weights`, (N,) above 0, by importance resampling.

    N rows are drawn DRAWS times and the scores averaged. The error is their standard deviation, scaled from N rows to the
    effective sample size.
    """
    rows = len(labels)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    draws = DRAWS if output.ndim == 1 else int(np.clip(VALUES_AT_MOST // output.size, 20, DRAWS))
    rng, scores = np.random.default_rng(seed), []
    for _ in range(draws):
        sample = rng.choice(rows, rows, p=weights / weights.sum())
        scores.append(metric.evaluate(labels[sample], output[sample], classes))
    return Weighted(float(np.mean(scores)), float(np.std(scores) * np.sqrt(rows / effective)), effective)
