"""95 % interval of the score on a leaderboard of n rows, from out-of-fold rows.

    middle(n) +- 1.96 sqrt(error^2 + spread(n)^2)

error: standard error of the estimate from N out-of-fold rows.  spread(n): standard deviation over draws of n test rows.
middle(n): the expected score of n rows. It differs from the out-of-fold score, because macro-F1 depends on the number
of rows: it is lower on few rows, and its definition for classes without test rows matters. See `_middle`.
Coverage in simulated flower competitions: benchmarks/leaderboard_coverage.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from competition.ensemble.bootstrap import Evaluation, resampled, score_with_error
from competition.ensemble.significance import NORMAL_95

SHARES = (1.0, 0.5, 0.25, 0.125)  # of the test rows; a public leaderboard counts a share of them


@dataclass(frozen=True, slots=True)
class ExpectedScore:
    """Expected score of `rows` test rows drawn like the training rows, in the usual sign of the metric (Metric.display).

    `best` and `worst` are the limits of the metric's score; None if they are unknown or there are none.
    """

    rows: int
    middle: float
    spread: float  # standard deviation of the draw of the rows
    error: float  # standard error of middle
    best: float | None
    worst: float | None = None


def expected_scores(
    labels: np.ndarray, output: np.ndarray, evaluation: Evaluation, test_rows: int, shares: Sequence[float] = SHARES
) -> tuple[ExpectedScore, ...]:
    """Expected scores of all test rows and of smaller shares; `interval` interpolates to any number of rows.

    labels: (N,) int, out-of-fold rows that took no part in any choice.  output: (N,) labels or (N, C) probabilities.
    Metrics of probabilities: for all test rows only; their spread follows 1 / sqrt(rows).
    """
    metric, error = evaluation.metric, score_with_error(labels, output, evaluation).error
    of_rows, of_middle = (replace(evaluation, seed=evaluation.seed + n) for n in (1, 2))
    points = []
    for share in shares if metric.needs_labels else shares[:1]:
        rows = max(1, round(test_rows * share))
        drawn = resampled(labels, [output], of_rows, rows)[0]
        spread = float(drawn.std())
        if spread <= 1e-12:  # no error in any sample: use the effect of one wrong row in N
            spread = error * math.sqrt(len(labels) / rows)
        middle = _middle(labels, output, of_middle, rows)
        points.append(ExpectedScore(rows, metric.display(middle), spread, error, metric.best, metric.worst))
    return tuple(points)


def _middle(labels: np.ndarray, output: np.ndarray, evaluation: Evaluation, rows: int) -> float:
    """The expected score of n rows, from N rows.

    n < N: the mean over subsamples of n rows drawn without replacement, which has no bias for any metric (Hoeffding
    1948). n > N: the bias of a metric falls with 1 / rows, so n rows gain over N rows what N rows gain over a
    sample of m of them, 1/m = 1/N - 1/n.  Metrics of probabilities are means over rows, or over pairs: no bias.
    """
    metric, oof_rows = evaluation.metric, len(labels)
    value = metric.evaluate(labels, output, evaluation.classes)
    if not metric.needs_labels or rows == oof_rows:
        return value
    if rows < oof_rows:
        return float(resampled(labels, [output], evaluation, rows, replace=False)[0].mean())
    size = rows * oof_rows // (rows - oof_rows)
    if size > 100 * oof_rows:
        return value
    return 2 * value - float(resampled(labels, [output], evaluation, size)[0].mean())


def interval(points: Sequence[ExpectedScore], rows: float) -> tuple[float, float]:
    """(low, high) of the 95 % interval for a leaderboard of `rows` rows, inside the metric's range.

    Uses the nearest point's spread, scaled by 1 / sqrt(rows); the middle is linear in 1 / rows between points.
    Assumes that test rows and training rows are drawn from the same distribution.
    """
    points = sorted(points, key=lambda point: -point.rows)  # 1 / rows rises
    nearest = min(points, key=lambda point: abs(math.log(point.rows / rows)))
    middle = float(np.interp(1 / rows, [1 / point.rows for point in points], [point.middle for point in points]))
    half = NORMAL_95 * math.hypot(nearest.error, nearest.spread * math.sqrt(nearest.rows / rows))
    lowest, highest = (nearest.worst, nearest.best) if (nearest.best or 0) > 0 else (nearest.best, nearest.worst)
    low, high = np.clip(
        (middle - half, middle + half),
        -np.inf if lowest is None else lowest,
        np.inf if highest is None else highest,
    )
    return float(low), float(high)
