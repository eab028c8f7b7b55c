"""Standard errors and paired differences by the rescaled stratified bootstrap (Rao & Wu, JASA 1988).

From each class of n rows n - 1 are drawn with replacement, each counting n / (n - 1) times: class sizes stay as they
are and the variance has no bias, where the plain bootstrap's is too small by (n - 1) / n. A class of one row borrows
(`rare_classes`). For a metric of labels, rows that agree in label and prediction are interchangeable, so their counts
are drawn instead: the same distribution, a thousand resamples in a few milliseconds.
An output is (N,) int labels for a metric of labels, (N, C) probabilities otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.metrics import Metric, tally_of_counts
from competition.ensemble.rare_classes import one_wrong_row, with_borrowed_rows
from competition.ensemble.significance import NORMAL_95, Difference, swap_test

CELLS_AT_ONCE = 4_000_000  # resamples x rows (or kinds of rows, or classes) held at once


@dataclass(frozen=True, slots=True)
class Score:
    """value: greater is better.  error: its standard error, from these rows."""

    value: float
    error: float


def score_with_error(
    labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int, resamples: int, seed: int
) -> Score:
    """The standard error is at least what one wrong row would change, so it is never 0."""
    value = score_of(labels, output, metric, classes)
    spread = float(resampled(labels, [output], metric, classes, resamples, seed)[0].std())
    if metric.from_counts is None and spread > 1e-12:  # varies with every row: only a spread of 0 needs the limit
        return Score(value, spread)
    return Score(value, max(spread, one_wrong_row(labels, output, metric, classes)))


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
    value = score_of(labels, after, metric, classes) - score_of(labels, before, metric, classes)
    error, p = float((second - first).std()), 0.0
    old, new = hard(before), hard(after)
    was, now = old == labels, new == labels
    changed, corrected, corrupted = (int(np.count_nonzero(rows)) for rows in (old != new, ~was & now, was & ~now))
    if metric.from_counts is not None:
        p, spread = swap_test(labels, before, after, metric, classes, seed)
        error = max(error, spread / math.sqrt(max(changed, 1)))  # at least what one of the changed rows changes
    width = NORMAL_95 * error
    return Difference(value, error, value - width, value + width, changed, corrected, corrupted, swap_p=p)


def resampled(
    labels: np.ndarray,
    outputs: Sequence[np.ndarray],
    metric: Metric,
    classes: int,
    resamples: int,
    seed: int,
    rows: int | None = None,
    replace: bool = True,
) -> list[np.ndarray]:
    """The score of each output on the same resamples: one (resamples,) array each.

    rows: None = as many as there are, stratified by label; n = n rows drawn from all (a leaderboard).
    replace: False = each row at most once, for n up to the number of rows.
    """
    for output in outputs:
        if len(output) != len(labels):
            raise UserError(f"expected one prediction per label, found {len(output)} for {len(labels)}")
    rng, sizes = np.random.default_rng(seed), np.bincount(labels, minlength=classes)
    if rows is None:
        labels, outputs = with_borrowed_rows(labels, outputs)
    if metric.from_counts is not None:
        kinds, count = np.unique(np.stack([labels, *outputs], axis=1), axis=0, return_counts=True)  # sorted by label
        labels, outputs, width = kinds[:, 0], list(kinds[:, 1:].T), max(len(kinds), classes)
    else:
        order = np.argsort(labels, kind="stable")
        labels, outputs = labels[order], [output[order] for output in outputs]
        count, width = np.ones(len(labels), np.int64), len(labels)
    at_once, pieces = max(1, CELLS_AT_ONCE // width), []
    for start in range(0, resamples, at_once):
        counts = _draw(labels, count, sizes, min(at_once, resamples - start), rng, rows, replace)
        pieces.append([_scores(labels, output, counts, metric, classes) for output in outputs])
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def _scores(labels: np.ndarray, output: np.ndarray, counts: np.ndarray, metric: Metric, classes: int) -> np.ndarray:
    """(R,) scores.  labels, output: of U kinds of rows.  counts: (R, U)."""
    if metric.from_counts is not None:
        return metric.from_counts(tally_of_counts(labels, output, counts, classes))
    assert metric.from_probs is not None
    return metric.from_probs(labels, output, counts)


def _draw(
    labels: np.ndarray,
    count: np.ndarray,
    sizes: np.ndarray,
    resamples: int,
    rng: np.random.Generator,
    rows: int | None,
    replace: bool,
) -> np.ndarray:
    """(resamples, U) float64: how often each of U kinds of rows counts.

    labels: (U,) sorted.  count: (U,) rows of each kind, borrowed ones included.  sizes: (C,) rows of each class.
    """
    if rows is not None and not replace:
        return rng.multivariate_hypergeometric(count, rows, size=resamples, method="marginals").astype(np.float64)
    if rows is not None:
        return rng.multinomial(rows, count / count.sum(), size=resamples).astype(np.float64)
    edges = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1], True])
    parts = []
    for a, b in pairwise(edges):
        size = sizes[labels[a]]
        drawn = max(size - 1, 1)
        parts.append(rng.multinomial(drawn, count[a:b] / count[a:b].sum(), size=resamples) * (size / drawn))
    return np.concatenate(parts, axis=1)


def score_of(labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int) -> float:
    if metric.from_counts is None:
        return metric.score(labels, output)
    return metric.score_labels(labels, output, classes)


def hard(output: np.ndarray) -> np.ndarray:
    """(N,) labels, of labels or of (N, C) probabilities."""
    return output if output.ndim == 1 else output.argmax(1)
