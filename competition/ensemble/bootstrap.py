"""Standard errors and paired differences by the rescaled stratified bootstrap (Rao & Wu, JASA 1988).

From each class of n rows n - 1 are drawn with replacement, each counting n / (n - 1) times: class sizes stay as they
are and the variance has no bias, where the plain bootstrap's is too small by (n - 1) / n. A class of one row uses rows
of other classes (`rare_classes`). For a metric of labels, rows with equal label and prediction are interchangeable, so their
counts are drawn: the same distribution, a thousand resamples in a few milliseconds.
An output is (N,) int labels for a metric of labels, (N, C) probabilities otherwise.
Rows of multi-label and regression competitions have no classes: they form one stratum, n - 1 of n rows are drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from competition.ensemble.metrics import Metric, default_labels
from competition.ensemble.rare_classes import one_wrong_row, with_borrowed_rows
from competition.ensemble.significance import NORMAL_95, Difference, swap_test

USER_METRIC_CELLS = 50_000_000  # rows x classes of all resamples together
FEWEST_RESAMPLES = 200  # the relative error of a standard error is then 5 %
CELLS_AT_ONCE = 4_000_000  # resamples x rows (or kinds of rows, or classes) in memory


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How outputs are scored: the metric, and the bootstrap of its standard error."""

    metric: Metric
    classes: int
    resamples: int
    seed: int


@dataclass(frozen=True, slots=True)
class Score:
    """value: greater is better.  error: its standard error, from these rows."""

    value: float
    error: float


def score_with_error(labels: np.ndarray, output: np.ndarray, evaluation: Evaluation) -> Score:
    """Score and its standard error, which is at least what one wrong row would change and so never 0."""
    metric, classes = evaluation.metric, evaluation.classes
    value = metric.evaluate(labels, output, classes)
    spread = float(resampled(labels, [output], evaluation)[0].std())
    # A metric that is continuous in every row needs the limit for a spread of 0 only.
    if metric.target == "regression" or (not metric.needs_labels and spread > 1e-12):
        return Score(value, spread)
    return Score(value, max(spread, one_wrong_row(labels, output, metric, classes)))


def paired(labels: np.ndarray, before: np.ndarray, after: np.ndarray, evaluation: Evaluation) -> Difference:
    """Paired difference after - before on the same resamples: errors common to both cancel.

    Exchanging `before` and `after` changes the sign of the difference, and neither its error nor its p-value.
    """
    # Resamples and swaps depend on the order of the two outputs, so both orders are computed as one of them.
    positions, outputs = np.flatnonzero((before != after).ravel()), [before, after]
    if len(positions) and not before.flat[positions[0]] < after.flat[positions[0]]:
        outputs = [after, before]
    metric, classes = evaluation.metric, evaluation.classes
    first, second = resampled(labels, outputs, evaluation)
    value = metric.evaluate(labels, after, classes) - metric.evaluate(labels, before, classes)
    error, p = float((second - first).std()), 0.0
    if metric.target == "regression":  # no row is right
        masks = [(before != after).any(1), np.zeros(0, bool), np.zeros(0, bool)]
    else:
        old, new = (default_labels(output, metric.target) for output in (before, after))
        was_right, is_right = ((each == labels).reshape(len(labels), -1).all(1) for each in (old, new))
        different = (old != new).reshape(len(labels), -1).any(1)
        masks = [different, ~was_right & is_right, was_right & ~is_right]
    changed, corrected, corrupted = (int(np.count_nonzero(mask)) for mask in masks)
    if metric.needs_labels:
        p, spread = swap_test(labels, outputs[0], outputs[1], metric, classes, evaluation.seed)
        error = max(error, spread / math.sqrt(max(changed, 1)))  # at least the effect of one changed row
    width, (lowest, highest) = NORMAL_95 * error, metric.range
    low, high = (float(np.clip(end, lowest - highest, highest - lowest)) for end in (value - width, value + width))
    return Difference(value, error, low, high, changed, corrected, corrupted, swap_p=p)


def resampled(
    labels: np.ndarray,
    outputs: Sequence[np.ndarray],
    evaluation: Evaluation,
    rows: int | None = None,
    replace: bool = True,
) -> list[np.ndarray]:
    """Scores of each output on the same resamples: one (resamples,) array per output, shorter for a slow user metric.

    rows: None = N rows, stratified by label; n = n rows drawn from all (a leaderboard).
    replace: False = each row at most once, for n up to the number of rows.
    """
    metric, classes = evaluation.metric, evaluation.classes
    resamples = evaluation.resamples
    if metric.by_rows:  # each costs a call of the user's function
        resamples = min(resamples, max(FEWEST_RESAMPLES, USER_METRIC_CELLS // outputs[0].size))
    rng = np.random.default_rng(evaluation.seed)
    sizes = np.bincount(labels, minlength=classes) if metric.target == "single" else np.zeros(0, np.int64)
    if metric.target == "single" and rows is None:
        labels, outputs = with_borrowed_rows(labels, outputs)
    count = np.ones(len(labels), np.int64)
    if metric.target == "single" and metric.needs_labels:
        kinds, count = np.unique(np.stack([labels, *outputs], axis=1), axis=0, return_counts=True)  # sorted by label
        labels, outputs = kinds[:, 0], list(kinds[:, 1:].T)
    elif metric.target == "single":
        order = np.argsort(labels, kind="stable")
        labels, outputs = labels[order], [output[order] for output in outputs]
    at_once, pieces = max(1, CELLS_AT_ONCE // max(len(labels), classes)), []
    for start in range(0, resamples, at_once):
        drawn = min(at_once, resamples - start)
        if rows is not None and not replace:
            weights = rng.multivariate_hypergeometric(count, rows, size=drawn, method="marginals")
        elif metric.target != "single":
            weights = _draw_rows(len(labels), drawn, rng, rows)
        elif rows is None:
            weights = _draw_strata(labels, count, sizes, drawn, rng)
        else:
            weights = rng.multinomial(rows, count / count.sum(), size=drawn)
        pieces.append([metric.evaluate_weighted(labels, output, weights, classes) for output in outputs])
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def _draw_rows(count: int, resamples: int, rng: np.random.Generator, rows: int | None) -> np.ndarray:
    """(resamples, count): weight of each row in each resample, without strata, for targets that are not classes.

    rows: of `resampled`.
    """
    drawn = max(count - 1, 1) if rows is None else rows
    # As a multinomial of equal chances, in a seventh of its time.
    numbers = rng.integers(0, count, (resamples, drawn)) + count * np.arange(resamples)[:, None]
    weights = np.bincount(numbers.ravel(), minlength=resamples * count).reshape(resamples, count)
    return weights * (count / drawn if rows is None else 1.0)


def _draw_strata(
    labels: np.ndarray, count: np.ndarray, sizes: np.ndarray, resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """(resamples, U) float64: weight of each of U kinds of rows in each resample.

    labels: (U,) sorted.  count: (U,) rows of each kind, borrowed rows included.  sizes: (C,) rows of each class.
    """
    edges = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1], True])
    parts = []
    for a, b in pairwise(edges):
        size = sizes[labels[a]]
        drawn = max(size - 1, 1)
        parts.append(rng.multinomial(drawn, count[a:b] / count[a:b].sum(), size=resamples) * (size / drawn))
    return np.concatenate(parts, axis=1)
