"""Standard errors for few rows: classes of one row and results without errors; and a warning about such classes."""

from collections.abc import Sequence

import numpy as np

from competition.ensemble.metrics import LabelCounts, Metric, count_labels

POOL = 30  # least number of rows borrowed by a class of one row
POOL_LIMIT = 100  # largest number
FEW_ROWS = 5  # with fewer rows, the score of a class alone is meaningless
CLASSES_TRIED = 200  # in `one_wrong_row`; bounds its memory
ROWS_TRIED = 20  # in `one_wrong_row`


def with_borrowed_rows(labels: np.ndarray, outputs: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Append, for each class of one row, the rows of the next rarest classes as if they were its rows.

    labels: (N,) int.  outputs: (N,) labels or (N, C) probabilities.
    One row has no variance, so strata are collapsed (Cochran 1977, 5A.12). In a borrowed row of class b that stands for
    class a, a and b are exchanged in label and prediction: a correct prediction stays correct. Class sizes stay the same.
    """
    present, count = np.unique(labels, return_counts=True)
    rarest = present[np.argsort(count, kind="stable")]
    singles = present[count == 1]
    new_labels, new_outputs = [labels], [[output] for output in outputs]
    for single in singles if len(present) > 1 else []:
        others = rarest[rarest != single]
        needed = int(np.searchsorted(np.cumsum(np.sort(count)[1:]), POOL - 1)) + 1
        rows = np.concatenate([np.flatnonzero(labels == c) for c in others[:needed]])
        if len(rows) > POOL_LIMIT:
            rows = rows[np.linspace(0, len(rows) - 1, POOL_LIMIT).astype(int)]
        new_labels.append(np.full(len(rows), single, labels.dtype))
        lending = labels[rows]
        for pieces, output in zip(new_outputs, outputs, strict=True):
            old, new = output[rows], output[rows]
            if output.ndim == 1:
                new[old == lending] = single
                new[old == single] = lending[old == single]
            else:
                at = np.arange(len(rows))
                new[:, single], new[at, lending] = old[at, lending], old[:, single]
            pieces.append(new)
    return np.concatenate(new_labels), [np.concatenate(pieces) for pieces in new_outputs]


def one_wrong_row(labels: np.ndarray, output: np.ndarray, metric: Metric, classes: int) -> float:
    """Root mean square over rows of the effect of one more wrong row: a lower limit for a standard error.

    N rows without an error do not prove an error rate of 0. With a flat prior on the rate, the number of errors
    expected in N other rows has an exponential distribution with standard deviation 1: one row. The 95 % interval
    then ends two rows below a perfect score; the rule of three (Hanley & Lippman-Hand 1983), one-sided, says three.
    """
    if metric.needs_labels and metric.target != "multi":
        return _one_wrong_label(count_labels(labels, output, classes), metric, classes)
    if classes == 1 and metric.target != "multi":
        return 0.0
    rows = np.unique(np.linspace(0, len(labels) - 1, ROWS_TRIED).astype(int))
    score = metric.evaluate(labels, output)
    effects = [metric.evaluate(labels, _with_wrong_row(labels, output, row)) - score for row in rows]
    return float(np.sqrt(np.mean(np.square(effects))))


def _with_wrong_row(labels: np.ndarray, output: np.ndarray, row: int) -> np.ndarray:
    """A copy of an (N, C) output, in which one row is wrong.

    Classes: the true class becomes the least probable. Several labels: the first label that the row has (or lacks, if it
    has none) becomes wrong: its decision is inverted, or its probability mirrored at one half.
    """
    changed = output.copy()
    if labels.ndim == 2:
        label = int(labels[row].argmax())
        changed[row, label] = ~output[row, label] if output.dtype == bool else 1 - output[row, label]
    else:
        label, lowest = labels[row], output[row].min() / 2
        changed[row] += (output[row, label] - lowest) / (output.shape[1] - 1)  # spread over the other classes
        changed[row, label] = lowest
    return changed


def _one_wrong_label(base: LabelCounts, metric: Metric, classes: int) -> float:
    """`one_wrong_row` from label counts: one row of each class is changed, weighted by the class's number of rows."""
    present = np.flatnonzero(base.actual)
    if classes == 1 or not len(present):
        return 0.0
    if len(present) > CLASSES_TRIED:
        present = present[np.linspace(0, len(present) - 1, CLASSES_TRIED).astype(int)]
    at, predicted_as = np.arange(len(present)), np.where(present + 1 < classes, present + 1, present - 1)
    step = np.where(base.hits[present] > 0, -1, 1)  # for a class without correct rows: one correct row more
    hits, predicted = (np.tile(part, (len(present), 1)) for part in (base.hits, base.predicted))
    hits[at, present] += step
    predicted[at, present] += step
    predicted[at, predicted_as] = np.maximum(predicted[at, predicted_as] - step, 0)
    changed = metric.evaluate_counts(LabelCounts(hits, predicted, base.actual, base.squares - step))
    effects = changed - metric.evaluate_counts(base)
    return float(np.sqrt(np.average(effects**2, weights=base.actual[present])))


def small_class_warning(labels: np.ndarray, classes: int) -> list[str]:
    """A warning if classes have too few rows for a score of their own, else an empty list.

    labels: (N,) int, (N, C) bool of a multi-label competition, or (N,) float of a regression, which has no classes.
    """
    if labels.dtype.kind == "f":
        return []
    count = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=classes)
    few, single = int((count < FEW_ROWS).sum()), int((count == 1).sum())
    if not few:
        return []
    borrowed = f", {single} of them one row" if single else ""
    borrowed += ", whose spread is borrowed from the next rarest classes" if single and labels.ndim == 1 else ""
    return [
        f"{few} of {classes} classes {'has' if few == 1 else 'have'} fewer than {FEW_ROWS} rows{borrowed}: "
        "no score of such a class alone means anything, and standard errors are approximate"
    ]
