"""Which classes go wrong, which are taken for which, how sure the predictions are, and the errors they are surest of."""

from dataclasses import dataclass

import numpy as np

from competition.ensemble.predictions import SUM_TOLERANCE


@dataclass(frozen=True)
class ClassScore:
    number: int
    rows: int  # of the class
    f1: float
    precision: float
    recall: float
    taken_for: int  # the class it is most often taken for; -1 where it never is
    taken_rows: int


@dataclass(frozen=True)
class Pair:
    actual: int
    given: int
    rows: int
    share: float  # of the rows of `actual`


@dataclass(frozen=True)
class Bin:
    """Rows whose prediction is about equally sure."""

    confidence: float  # mean probability of the most probable class
    accuracy: float
    error: float  # its standard error, by (right + 1) / (rows + 2), so that a full bin of a few rows has one too
    rows: int


def confusion(labels: np.ndarray, given: np.ndarray, classes: int) -> np.ndarray:
    """(C, C) int: rows of each class (down) that were given each class (across).  labels, given: (N,) int."""
    return np.bincount(labels * classes + given, minlength=classes * classes).reshape(classes, classes)


def class_scores(table: np.ndarray) -> list[ClassScore]:
    """Worst first, by F1, then the larger class.  table: (C, C) of `confusion`.

    F1 of a class that is in neither labels nor predictions is 0, as in the metric.
    """
    hits, actual, given = table.diagonal(), table.sum(1), table.sum(0)
    wrong = table - np.diag(hits)
    found = []
    for n in range(len(table)):
        other = int(wrong[n].argmax())
        rows = int(wrong[n, other])
        f1 = 2 * hits[n] / max(actual[n] + given[n], 1)
        precision, recall = hits[n] / max(given[n], 1), hits[n] / max(actual[n], 1)
        found.append(ClassScore(n, int(actual[n]), f1, precision, recall, other if rows else -1, rows))
    return sorted(found, key=lambda one: (one.f1, -one.rows, one.number))


def confused_pairs(table: np.ndarray, most: int) -> list[Pair]:
    """The errors that happen most often, first.  table: (C, C) of `confusion`."""
    wrong = table - np.diag(table.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    places = [tuple(map(int, np.unravel_index(place, wrong.shape))) for place in order]
    return [Pair(a, g, int(wrong[a, g]), wrong[a, g] / table[a].sum()) for a, g in places if wrong[a, g]]


def are_probabilities(scores: np.ndarray) -> bool:
    """A blend of ranks gives scores whose rows do not sum to 1.  scores: (N, C)."""
    return bool((scores >= 0).all() and (np.abs(scores.sum(1) - 1) <= SUM_TOLERANCE).all())


def reliability(labels: np.ndarray, probs: np.ndarray, bins: int = 10) -> tuple[list[Bin], float]:
    """(bins of equal width that hold rows, expected calibration error: mean |accuracy - confidence| over rows)."""
    sure, right = probs.max(1), probs.argmax(1) == labels
    which = np.minimum((sure * bins).astype(int), bins - 1)
    found = []
    for n in np.unique(which):
        here = which == n
        rows, hits = int(here.sum()), int(right[here].sum())
        smooth = (hits + 1) / (rows + 2)
        error = float(np.sqrt(smooth * (1 - smooth) / (rows + 2)))
        found.append(Bin(float(sure[here].mean()), hits / rows, error, rows))
    gap = sum(one.rows * abs(one.accuracy - one.confidence) for one in found) / len(labels)
    return found, float(gap)


def most_confident_errors(labels: np.ndarray, given: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the wrong rows whose given class has the highest score, the surest first."""
    wrong = np.flatnonzero(labels != given)
    return wrong[np.argsort(-scores[wrong, given[wrong]], kind="stable")][:most]
