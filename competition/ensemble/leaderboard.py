"""What a leaderboard of n rows may show: a 95 % interval from out-of-fold rows, one formula for all that print it.

    middle(n) +- 1.96 sqrt(error^2 + spread(n)^2)

error: of our own estimate, from N out-of-fold rows.  spread(n): of the draw of n test rows, from samples of n rows.
middle(n): the mean score of these samples, less the bias that the out-of-fold rows have as a world of their own. It is
not the out-of-fold score: macro-F1 is lower on few rows, and where a class has no test row, its definition decides.
Coverage in simulated flower competitions: benchmarks/leaderboard_coverage.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from competition.ensemble.bootstrap import at_least_one_row, resampled, score_of
from competition.ensemble.metrics import Metric
from competition.ensemble.significance import NORMAL_95

SHARES = (1.0, 0.5, 0.25, 0.125)  # of the test rows, because a public leaderboard counts a share of them


@dataclass(frozen=True, slots=True)
class ExpectedScore:
    """Of `rows` test rows like the training rows, in the known unit of the metric (Metric.shown)."""

    rows: int
    middle: float
    spread: float  # standard deviation of the draw of the rows
    error: float  # standard error of middle
    best: float | None  # the limit of the score: 1, or 0 where smaller is better; None = not known


def expected_scores(
    labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int, test_rows: int, resamples: int, seed: int
) -> tuple[ExpectedScore, ...]:
    """For all test rows and for smaller shares of them; `interval` answers for any number of rows.

    labels: (N,) int, out-of-fold rows that took no part in any choice.  output: (N,) labels or (N, C) probabilities.
    Metrics of probabilities: for all test rows only; their spread follows 1 / sqrt(rows).
    """
    value = score_of(labels, output, metric, classes)
    own = resampled(labels, [output], metric, classes, resamples, seed)[0]
    error, bias = at_least_one_row(float(own.std()), labels, output, metric, classes), float(own.mean()) - value
    best = 1.0 if metric.sign > 0 else 0.0
    points = []
    for share in SHARES if metric.of_tally is not None else SHARES[:1]:
        rows = max(1, round(test_rows * share))
        drawn = resampled(labels, [output], metric, classes, resamples, seed + 1, rows)[0]
        spread = float(drawn.std())
        if spread <= 1e-12:  # no mistake in any sample: as many as one wrong row in N would give
            spread = error * math.sqrt(len(labels) / rows)
        points.append(ExpectedScore(rows, metric.shown(float(drawn.mean()) - bias), spread, error, best))
    return tuple(points)


def from_standard_error(score: float, error: float, rows: int) -> ExpectedScore:
    """What a score and its standard error on `rows` rows say alone: for results without expected scores."""
    return ExpectedScore(rows, score, error, error, None)


def interval(points: Sequence[ExpectedScore], rows: float) -> tuple[float, float]:
    """(low, high): 95 % of leaderboards of `rows` rows.

    The nearest point's spread, scaled by 1 / sqrt(rows); the middle is linear in 1 / rows between points.
    Assumes that test rows are drawn at random from where the training rows come from.
    """
    points = sorted(points, key=lambda point: -point.rows)  # 1 / rows rises
    nearest = min(points, key=lambda point: abs(math.log(point.rows / rows)))
    middle = float(np.interp(1 / rows, [1 / point.rows for point in points], [point.middle for point in points]))
    half = NORMAL_95 * math.hypot(nearest.error, nearest.spread * math.sqrt(nearest.rows / rows))
    low, high, best = middle - half, middle + half, nearest.best
    if best is None:
        return low, high
    return (low, min(high, best)) if best > 0 else (max(low, best), high)
