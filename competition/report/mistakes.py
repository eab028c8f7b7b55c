"""Confusion matrix, class scores, confused pairs, calibration bins and the most confident errors."""

from typing import NamedTuple

import numpy as np
import pandas as pd

BINS = 10  # of the confidence, of equal width


class ClassScore(NamedTuple):
    number: int
    f1: float
    precision: float
    recall: float
    rows: int  # of the class
    predicted: int  # rows


class Bin(NamedTuple):
    """Rows of similar confidence."""

    confidence: float  # mean probability of the most probable class
    accuracy: float
    rows: int
    error: float  # standard error of the accuracy, smoothed as (hits + 1) / (rows + 2): not 0 for few rows


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """(C, C) int: rows by true class (down) and predicted class (across).  labels, predicted: (N,) int."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_scores(labels: np.ndarray, predicted: np.ndarray, classes: int) -> list[ClassScore]:
    """Scores of all classes, the worst F1 first, then the larger class.

    labels, predicted: (N,) int, or (N, C) bool of several labels. F1 of a class that is absent from both is 0, as in the metric.
    """
    if labels.ndim == 2:
        hits, actual, chosen = (one.sum(0) for one in (labels & predicted, labels, predicted))
    else:
        counted_labels = (labels[labels == predicted], labels, predicted)
        hits, actual, chosen = (np.bincount(one, minlength=classes) for one in counted_labels)
    f1 = 2 * hits / np.maximum(actual + chosen, 1)
    precision, recall = hits / np.maximum(chosen, 1), hits / np.maximum(actual, 1)
    columns = (range(classes), *(one.tolist() for one in (f1, precision, recall, actual, chosen)))
    scores = [ClassScore(*figures) for figures in zip(*columns, strict=True)]
    return sorted(scores, key=lambda score: (score.f1, -score.rows))


def largest_cells(table: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """(row, column) of the largest cells above 0, the largest first.

    np.triu(table + table.T, 1) of a table of `confusion` gives the pairs of classes that are confused most, in both directions.
    """
    cells = np.argwhere(table > 0)
    order = np.argsort(-table[table > 0], kind="stable")[:limit]
    return [(row, column) for row, column in cells[order].tolist()]


def reliability(labels: np.ndarray, probs: np.ndarray) -> tuple[list[Bin], float]:
    """Return the non-empty bins and the expected calibration error, the mean |accuracy - confidence|.

    labels: (N,) int.  probs: (N, C).
    """
    table = pd.DataFrame({"confidence": probs.max(1), "accuracy": probs.argmax(1) == labels, "rows": 1})
    groups = table.groupby(np.minimum((table["confidence"] * BINS).astype(int), BINS - 1))
    bins = groups.agg({"confidence": "mean", "accuracy": "mean", "rows": "sum"})
    smooth = (bins["accuracy"] * bins["rows"] + 1) / (bins["rows"] + 2)
    bins["error"] = np.sqrt(smooth * (1 - smooth) / (bins["rows"] + 2))
    gap = float((bins["rows"] * (bins["accuracy"] - bins["confidence"]).abs()).sum() / len(labels))
    return [Bin(*row) for row in bins.itertuples(index=False)], gap


def most_confident_errors(labels: np.ndarray, predicted: np.ndarray, scores: np.ndarray, limit: int) -> np.ndarray:
    """Row numbers of the misclassified rows, highest score of the predicted class first."""
    wrong = np.flatnonzero(labels != predicted)
    return wrong[np.argsort(-scores[wrong, predicted[wrong]], kind="stable")][:limit]
