"""Standard errors and paired differences by the stratified bootstrap (Efron & Tibshirani 1993).

Rows are drawn with replacement within each class. For a metric of labels, rows that agree in label and prediction are
interchangeable, so their counts are drawn instead: the same distribution, a thousand resamples in a few milliseconds.
An output is (N,) int labels for a metric of labels, (N, C) probabilities otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from competition.ensemble.metrics import Metric, Tally
from competition.errors import Refusal

ROWS_AT_ONCE = 4_000_000  # resamples x rows held at once for metrics of probabilities


@dataclass(frozen=True, slots=True)
class Score:
    """value: greater is better.  error: its standard error, from these rows."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Difference:
    """after - before on the same rows."""

    value: float
    error: float
    low: float  # of the 95 % interval
    high: float
    changed: int  # rows with another label
    corrected: int  # rows that were wrong and are right
    corrupted: int  # rows that were right and are wrong: a net gain hides many of both (Shanmugam et al., ICCV 2021)
    seeds: float = 0.0  # what other seeds of the training alone would change, a standard deviation; 0 = not studied

    @property
    def noise(self) -> float:
        """The standard error of these rows and the spread over seeds, together."""
        return math.hypot(self.error, self.seeds)

    @property
    def is_real(self) -> bool:
        """Better by more than its noise."""
        return self.value > self.noise

    @property
    def is_better(self) -> bool:
        """The rule of choices among candidates."""
        return self.is_real


def score_with_error(
    labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int, resamples: int, seed: int
) -> Score:
    value = _value(labels, output, metric, classes)
    return Score(value, float(resampled(labels, [output], metric, classes, resamples, seed)[0].std()))


def paired(
    labels: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    metric: Metric,
    classes: int,
    resamples: int,
    seed: int,
) -> Difference:
    """The same resamples for both: what both get wrong cancels, so small gains can be told from noise."""
    first, second = resampled(labels, [before, after], metric, classes, resamples, seed)
    gaps = second - first
    value = _value(labels, after, metric, classes) - _value(labels, before, metric, classes)
    low, high = np.quantile(gaps, [0.025, 0.975])
    old, new = hard(before), hard(after)
    was, now = old == labels, new == labels
    flips = [int(np.count_nonzero(rows)) for rows in (old != new, ~was & now, was & ~now)]
    return Difference(value, float(gaps.std()), float(low), float(high), *flips)


def leaderboard_band(
    labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int, rows: int, resamples: int, seed: int
) -> tuple[float, float]:
    """Where 95 % of leaderboards of `rows` rows fall: the noise of their draw and that of our own estimate together.

    Assumes that test rows come from where training rows come from, and are drawn at random.
    """
    ours = score_with_error(labels, output, metric, classes, resamples, seed)
    small = resampled(labels, [output], metric, classes, resamples, seed + 1, rows)[0]
    spread = 1.96 * float(np.hypot(ours.error, small.std()))
    # A macro-F1 of few rows is lower on average than one of many: a rare class is missed whole.
    middle, best = float(small.mean()), 1.0 if metric.sign > 0 else 0.0
    return middle - spread, min(middle + spread, best)


def resampled(
    labels: np.ndarray,
    outputs: Sequence[np.ndarray],
    metric: Metric,
    classes: int,
    resamples: int,
    seed: int,
    rows: int | None = None,
) -> list[np.ndarray]:
    """The score of each output on the same resamples: one (resamples,) array each.

    rows: None = as many as there are, stratified by label; n = n rows drawn from all (a leaderboard).
    """
    for output in outputs:
        if len(output) != len(labels):
            raise Refusal(f"expected one prediction per label, found {len(output)} for {len(labels)}")
    rng = np.random.default_rng(seed)
    if metric.of_tally is None:
        return _resample_rows(labels, outputs, metric, resamples, rng, rows)
    return _resample_counts(labels, outputs, metric, classes, resamples, rng, rows)


def _resample_counts(
    labels: np.ndarray,
    outputs: Sequence[np.ndarray],
    metric: Metric,
    classes: int,
    resamples: int,
    rng: np.random.Generator,
    rows: int | None,
) -> list[np.ndarray]:
    from scipy.sparse import csr_array

    kinds, count = np.unique(np.stack([labels, *outputs], axis=1), axis=0, return_counts=True)  # sorted by label
    counts = _draw(kinds[:, 0], count, resamples, rng, rows).astype(np.float64)  # (R, U)

    def per_class(where: np.ndarray, at: np.ndarray) -> np.ndarray:
        kind = np.flatnonzero(where)
        chosen = csr_array((np.ones(len(kind)), (kind, at[kind])), shape=(len(kinds), classes))
        return np.asarray((chosen.T @ counts.T).T)

    assert metric.of_tally is not None
    everything = np.ones(len(kinds), bool)
    actual = per_class(everything, kinds[:, 0])
    return [
        metric.of_tally(
            Tally(
                hits=per_class(given == kinds[:, 0], given),
                predicted=per_class(everything, given),
                actual=actual,
                squares=counts @ (given - kinds[:, 0]).astype(np.float64) ** 2,
            )
        )
        for given in kinds[:, 1:].T
    ]


def _resample_rows(
    labels: np.ndarray,
    outputs: Sequence[np.ndarray],
    metric: Metric,
    resamples: int,
    rng: np.random.Generator,
    rows: int | None,
) -> list[np.ndarray]:
    assert metric.of_rows is not None
    order = np.argsort(labels, kind="stable")
    labels, outputs = labels[order], [output[order] for output in outputs]
    at_once = max(1, ROWS_AT_ONCE // len(labels))
    pieces = []
    for start in range(0, resamples, at_once):
        piece = min(at_once, resamples - start)
        counts = _draw(labels, np.ones(len(labels), np.int64), piece, rng, rows)
        pieces.append([metric.of_rows(labels, output, counts) for output in outputs])
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def _draw(
    labels: np.ndarray, count: np.ndarray, resamples: int, rng: np.random.Generator, rows: int | None
) -> np.ndarray:
    """(resamples, U) int: how often each of U kinds of rows is drawn.  labels: (U,) sorted.  count: (U,) rows of it."""
    if rows is not None:
        return rng.multinomial(rows, count / count.sum(), size=resamples)
    edges = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1], True])
    return np.concatenate(
        [rng.multinomial(count[a:b].sum(), count[a:b] / count[a:b].sum(), size=resamples) for a, b in pairwise(edges)],
        axis=1,
    )


def _value(labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int) -> float:
    if metric.of_tally is None:
        return metric.score(labels, output)
    return metric.score_labels(labels, output, classes)


def hard(output: np.ndarray) -> np.ndarray:
    """(N,) labels, of labels or of (N, C) probabilities."""
    return output if output.ndim == 1 else output.argmax(1)
