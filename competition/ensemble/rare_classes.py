"""Standard errors where rows are few: classes of one row, results without a mistake, and a warning about both."""

from collections.abc import Sequence

import numpy as np

from competition.ensemble.metrics import LabelCounts, Metric, count_labels

POOL = 30  # rows that speak for a class of one row, at least
POOL_LIMIT = 100  # and at most
FEW_ROWS = 5  # a class of fewer rows allows no statement about itself
CLASSES_TRIED = 200  # by `one_wrong_row`; bounds its memory
ROWS_TRIED = 20


def with_borrowed_rows(labels: np.ndarray, outputs: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Append, for each class of one row, the rows of the next rarest classes as if they were rows of it.

    labels: (N,) int.  outputs: (N,) labels or (N, C) probabilities.
    One row says nothing of its own variance, so the strata are collapsed (Cochran 1977, 5A.12). Only what happened to
    a row is borrowed: in a row of class b that stands for class a, a and b are exchanged in label and prediction. So
    class sizes stay as they are, and "right" stays "right".
    """
    names, count = np.unique(labels, return_counts=True)
    rarest = names[np.argsort(count, kind="stable")]
    singles = names[count == 1]
    new_labels, new_outputs = [labels], [[output] for output in outputs]
    for single in singles if len(names) > 1 else []:
        others = rarest[rarest != single]
        needed = int(np.searchsorted(np.cumsum(np.sort(count)[1:]), POOL - 1)) + 1
        rows = np.concatenate([np.flatnonzero(labels == name) for name in others[:needed]])
        if len(rows) > POOL_LIMIT:
            rows = rows[np.linspace(0, len(rows) - 1, POOL_LIMIT).astype(int)]
        new_labels.append(np.full(len(rows), single, labels.dtype))
        for pieces, output in zip(new_outputs, outputs, strict=True):
            pieces.append(_exchanged(output[rows], labels[rows], single))
    return np.concatenate(new_labels), [np.concatenate(pieces) for pieces in new_outputs]


def _exchanged(output: np.ndarray, labels: np.ndarray, single: int) -> np.ndarray:
    """Rows of `labels` as rows of `single`: the two classes exchanged.  output: (n,) labels or (n, C)."""
    new = output.copy()
    if output.ndim == 1:
        new[output == labels] = single
        new[output == single] = labels[output == single]
    else:
        at = np.arange(len(output))
        new[:, single], new[at, labels] = output[at, labels], output[:, single]
    return new


def one_wrong_row(labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int) -> float:
    """What one more wrong row changes: the root mean square over rows.  A lower limit for a standard error.

    N rows without a mistake do not prove that there are none. With a flat prior on the rate, the number of mistakes
    expected in N other rows has an exponential distribution with standard deviation 1: one row. The 95 % interval
    then ends two rows below a perfect score; the rule of three (Hanley & Lippman-Hand 1983), one-sided, says three.
    """
    if metric.from_counts is not None:
        return _of_tallies(count_labels(labels, output, classes), metric, classes)
    if classes == 1:
        return 0.0
    rows = np.unique(np.linspace(0, len(labels) - 1, ROWS_TRIED).astype(int))
    plain, effects = metric.score(labels, output), []
    for row in rows:
        worst, own, least = output.copy(), labels[row], output[row].min() / 2
        worst[row] += (output[row, own] - least) / (classes - 1)
        worst[row, own] = least  # the least probable class, the rest spread over the others
        effects.append(metric.score(labels, worst) - plain)
    return float(np.sqrt(np.mean(np.square(effects))))


def _of_tallies(base: LabelCounts, metric: Metric, classes: int) -> float:
    """Rows of one class change the score alike, so one row of each class is tried and counts by the class's rows."""
    assert metric.from_counts is not None
    names = np.flatnonzero(base.actual)
    if classes == 1 or not len(names):
        return 0.0
    if len(names) > CLASSES_TRIED:
        names = names[np.linspace(0, len(names) - 1, CLASSES_TRIED).astype(int)]
    at, taken_for = np.arange(len(names)), np.where(names + 1 < classes, names + 1, names - 1)
    step = np.where(base.hits[names] > 0, -1, 1)  # where no row is right: what one right row changes
    hits, predicted = (np.tile(part, (len(names), 1)) for part in (base.hits, base.predicted))
    hits[at, names] += step
    predicted[at, names] += step
    predicted[at, taken_for] = np.maximum(predicted[at, taken_for] - step, 0)
    changed = metric.from_counts(LabelCounts(hits, predicted, base.actual, base.squares - step))
    effects = changed - metric.from_counts(base)
    return float(np.sqrt(np.average(effects**2, weights=base.actual[names])))


def small_class_warning(labels: np.ndarray, classes: int) -> list[str]:
    """One sentence where classes have too few rows for any statement about them, else nothing.  labels: (N,) int."""
    count = np.bincount(labels, minlength=classes)
    few, single = int((count < FEW_ROWS).sum()), int((count == 1).sum())
    if not few:
        return []
    borrowed = f", {single} of them one row, whose spread is borrowed from the next rarest classes" if single else ""
    return [
        f"{few} of {classes} classes have fewer than {FEW_ROWS} rows{borrowed}: no score of such a class alone means "
        "anything, and standard errors are approximate"
    ]
