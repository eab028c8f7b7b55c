"""The trivial baseline: the best score of an answer that looks at no row. A result that is not better has learned nothing."""

from collections.abc import Iterator

import numpy as np

from competition.ensemble.metrics import Metric

DRAWS = 9  # of random classes, of which the one with the median score is the answer
FEW_ROWS = 500  # fewer rows have more draws: the score of one draw of 36 rows in 5 classes deviates by .07
DRAWN_ROWS = 10_000  # in all draws of few rows together


def trivial_output(
    labels: np.ndarray, metric: Metric, classes: int, fitted_on: np.ndarray | None = None
) -> tuple[str, np.ndarray]:
    """The best of the answers that fit the metric and its target, fitted on the rows that it is scored on or on others.

    labels: (N,) int, (N, C) bool or (N,) float, as the metric's target says.
    fitted_on: labels of other rows, on which the answers are fitted and the best is chosen; None = labels.
    Returns what is answered ("the most frequent class for every row") and (N,) labels or (N, C), as the metric needs it.
    Fitting on the same rows favours the baseline a little. Cross-fitting would harm it more: where a fold has more rows
    of a class, the other folds have fewer, so that shares from them have an AUC below 0.5.
    """
    chosen_on = labels if fitted_on is None else fitted_on
    answers = dict(_answers(chosen_on, metric, classes, chosen_on))
    name = max(answers, key=lambda one: metric.evaluate(chosen_on, answers[one], classes))
    return name, answers[name] if fitted_on is None else dict(_answers(labels, metric, classes, fitted_on))[name]


def trivial_score(
    labels: np.ndarray, metric: Metric, classes: int, fitted_on: np.ndarray | None = None
) -> tuple[str, float]:
    """What the trivial baseline answers for these rows, and its score in the metric's usual sign.  fitted_on: see trivial_output."""
    answer, output = trivial_output(labels, metric, classes, fitted_on)
    return answer, metric.display(metric.evaluate(labels, output, classes))


def _answers(
    labels: np.ndarray, metric: Metric, classes: int, fitted_on: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """(what is answered, the output of every row) of each trivial answer for this kind of target."""
    rows = len(labels)
    if metric.target == "regression":
        yield "the mean of all rows", np.full((rows, 1), fitted_on.mean())
        yield "the median of all rows", np.full((rows, 1), np.median(fitted_on))
    elif metric.target == "multi":
        shares = fitted_on.mean(0)
        if not metric.needs_labels:
            yield "the share of each label as its probability", np.tile(shares, (rows, 1))
            return
        order = np.argsort(-shares, kind="stable")
        for count in (1, 2, 4, 8, 16):
            if count < classes:
                most_frequent = np.isin(np.arange(classes), order[:count])
                noun = "the most frequent label" if count == 1 else f"the {count} most frequent labels"
                yield f"{noun} for every row", np.tile(most_frequent, (rows, 1))
        yield "every label for every row", np.ones((rows, classes), bool)
    else:
        counts = np.bincount(fitted_on, minlength=classes)
        if metric.needs_labels:
            yield "the most frequent class for every row", np.full(rows, counts.argmax())
        else:
            yield "the share of each class as its probability", np.tile(counts / len(fitted_on), (rows, 1))
        if metric.needs_labels or metric.by_rows:  # the user's own metric may be one of labels
            rng = np.random.default_rng([0, 1])  # the same for the same rows; not the seed of a bootstrap
            half = DRAWS // 2 if rows >= FEW_ROWS else DRAWN_ROWS // max(rows, 1) // 2
            draws = [np.resize(rng.permutation(fitted_on), rows) for _ in range(2 * half + 1)]  # there is a middle one
            outputs = [np.eye(classes)[drawn] if metric.by_rows else drawn for drawn in draws]
            outputs.sort(key=lambda output: metric.evaluate(labels, output, classes))
            yield "classes drawn at random, as often as they occur", outputs[half]
