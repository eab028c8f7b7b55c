import numpy as np
import pytest

from benchmarks.leaderboard_coverage import coverage, truth
from competition.ensemble.bootstrap import Evaluation
from competition.ensemble.expected_score import ExpectedScore, expected_scores, interval
from competition.ensemble.metrics import METRICS

F1 = METRICS["macro_f1"]


def band(labels, output, metric, classes, rows):
    return interval(expected_scores(labels, output, Evaluation(metric, classes, 500, 0), rows), rows)


def test_the_95_percent_interval_covers_leaderboards_of_104_unequal_classes():
    """A short version of benchmarks/leaderboard_coverage.py: 15 competitions instead of 300."""
    result = coverage(truth(2), F1, 12_753, (450, 2_214, 7_382), 15, seed=1, resamples=100, boards=300)
    for inside, distance in result:
        assert 0.90 <= inside <= 0.99 and abs(distance) < 0.5


def test_the_interval_ends_at_the_best_score_and_is_never_a_point():
    labels = np.arange(400) % 4
    low, high = band(labels, labels, F1, 4, 100)
    assert high == 1 and 0.95 < low < 0.995
    sure = np.full((400, 4), 0.001)
    sure[np.arange(400), labels] = 0.997
    low, high = band(labels, sure, METRICS["log_loss"], 4, 100)
    assert 0 <= low < high  # in the known unit: smaller is better


def test_the_interval_for_any_number_of_rows_is_interpolated():
    """Between computed sizes the spread follows 1 / sqrt(rows), the middle 1 / rows."""
    points = (ExpectedScore(400, 0.90, 0.010, 0.005, 1.0), ExpectedScore(100, 0.87, 0.022, 0.005, 1.0))
    low, high = interval(points, 200)
    assert (low + high) / 2 == pytest.approx(0.89)
    assert high - low == pytest.approx(2 * 1.96 * np.hypot(0.005, 0.010 * np.sqrt(2)), rel=1e-6)
    assert interval(points, 100) == pytest.approx((0.87 - 1.96 * 0.02256, 0.87 + 1.96 * 0.02256), abs=1e-4)
