import re

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score

from competition.report.classes import rare_note
from competition.report.mistakes import class_scores, confusion, largest_cells, reliability, worst_pairs

LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
PREDICTED = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 0])
CLASSES = 5  # no row has class 4, and none is predicted as it


def test_every_class_has_the_scores_of_scikit_learn_and_the_worst_comes_first() -> None:
    scores = class_scores(confusion(LABELS, PREDICTED, CLASSES))
    assert [score.f1 for score in scores] == sorted(score.f1 for score in scores)
    for measure, of in ((f1_score, "f1"), (precision_score, "precision"), (recall_score, "recall")):
        expected = measure(LABELS, PREDICTED, labels=range(CLASSES), average=None, zero_division=0)
        assert [getattr(score, of) for score in scores] == pytest.approx([expected[score.number] for score in scores])


def test_of_two_equal_classes_the_larger_one_comes_first_and_each_names_its_most_frequent_confusion() -> None:
    scores = class_scores(confusion(LABELS, PREDICTED, CLASSES))
    assert [score.number for score in scores][:2] == [3, 4]
    confusions = {score.number: (score.confused_with, score.confused_rows) for score in scores}
    assert confusions == {0: (1, 2), 1: (2, 1), 2: (-1, 0), 3: (0, 1), 4: (-1, 0)}


def test_pairs_are_the_most_frequent_errors_and_no_more_than_there_are() -> None:
    table = confusion(LABELS, PREDICTED, CLASSES)
    assert largest_cells(table - np.diag(table.diagonal()), 10) == [(0, 1), (1, 2), (3, 0)]
    assert worst_pairs(np.array([[9, 2, 3], [2, 9, 0], [0, 0, 9]]), 9) == [(0, 1), (0, 2)]  # both directions together


def test_the_calibration_error_is_the_mean_gap_over_rows() -> None:
    probs = np.array([[0.95, 0.05]] * 3 + [[0.45, 0.55]])
    bins, gap = reliability(np.array([0, 0, 1, 1]), probs)
    assert [(part.rows, part.accuracy) for part in bins] == [(1, 1.0), (3, pytest.approx(2 / 3))]
    assert gap == pytest.approx((3 * (0.95 - 2 / 3) + (1 - 0.55)) / 4)
    assert all(part.error > 0 for part in bins)  # also if all rows of a bin are correct


def test_rare_classes_are_called_worse_only_beyond_noise() -> None:
    rows, rng = np.geomspace(5, 500, 30).astype(int), np.random.default_rng(0)
    rising = np.linspace(0.5, 0.95, 30) + rng.normal(0, 0.02, 30)
    assert "rare classes are worse: mean F1 0.5" in rare_note(rising, rows)
    assert re.match(r"Rank correlation of rows and F1 \+0\.9\d;", rare_note(rising, rows))
    assert "rare classes are better" in rare_note(rising[::-1], rows)
    assert "not worse beyond noise" in rare_note(rng.uniform(0.4, 0.9, 30), rows)
