"""Confusion matrix, class scores, confused pairs, calibration bins and the most confident errors."""

from dataclasses import dataclass

import numpy as np

BINS = 10  # of the confidence, of equal width


@dataclass(frozen=True)
class ClassScore:
    number: int
    rows: int  # of the class
    f1: float
    precision: float
    recall: float
    confused_with: int  # the wrong class predicted most often; -1 if there is none
    confused_rows: int


@dataclass(frozen=True)
class Bin:
    """Rows of similar confidence."""

    confidence: float  # mean probability of the most probable class
    accuracy: float
    error: float  # standard error of the accuracy, smoothed as (hits + 1) / (rows + 2): not 0 for few rows
    rows: int


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """(C, C) int: rows by true class (down) and predicted class (across).  labels, predicted: (N,) int."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_scores(table: np.ndarray) -> list[ClassScore]:
    """Scores of all classes, worst F1 first, then the larger class.  table: (C, C) of `confusion`.

    F1 of a class that is absent from labels and predictions is 0, as in the metric.
    """
    hits, actual, predicted = table.diagonal(), table.sum(1), table.sum(0)
    wrong = table - np.diag(hits)
    scores = []
    for n in range(len(table)):
        confused_with = int(wrong[n].argmax())
        rows = int(wrong[n, confused_with])
        f1 = 2 * hits[n] / max(actual[n] + predicted[n], 1)
        precision, recall = hits[n] / max(predicted[n], 1), hits[n] / max(actual[n], 1)
        scores.append(ClassScore(n, int(actual[n]), f1, precision, recall, confused_with if rows else -1, rows))
    return sorted(scores, key=lambda score: (score.f1, -score.rows, score.number))


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
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    bin_of_row = np.minimum((confidence * BINS).astype(int), BINS - 1)
    filled = []
    for n in np.unique(bin_of_row):
        in_bin = bin_of_row == n
        rows, hits = int(in_bin.sum()), int(correct[in_bin].sum())
        smooth = (hits + 1) / (rows + 2)
        error = float(np.sqrt(smooth * (1 - smooth) / (rows + 2)))
        filled.append(Bin(float(confidence[in_bin].mean()), hits / rows, error, rows))
    error = sum(b.rows * abs(b.accuracy - b.confidence) for b in filled) / len(labels)
    return filled, float(error)


def most_confident_errors(labels: np.ndarray, predicted: np.ndarray, scores: np.ndarray, limit: int) -> np.ndarray:
    """Row numbers of the misclassified rows, highest score of the predicted class first."""
    wrong = np.flatnonzero(labels != predicted)
    return wrong[np.argsort(-scores[wrong, predicted[wrong]], kind="stable")][:limit]
