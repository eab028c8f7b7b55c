import numpy as np
import pytest

from competition.ensemble.metrics import metric_named
from competition.report.caveats import accuracy, weighted_score


def test_weights_in_the_proportions_of_other_rows_give_their_score():
    """Half of the rows are easy (right in 9 of 10), half hard (6 of 10); the test set has three hard rows for one easy."""
    rng = np.random.default_rng(0)
    rows, classes = 4000, 4
    labels, hard = rng.integers(0, classes, rows), np.arange(rows) % 2 == 1
    right = rng.random(rows) < np.where(hard, 0.6, 0.9)
    predicted = np.where(right, labels, (labels + 1) % classes)
    scored = weighted_score(labels, predicted, metric_named("accuracy"), classes, np.where(hard, 3.0, 1.0), seed=0)
    assert scored.value == pytest.approx(0.25 * 0.9 + 0.75 * 0.6, abs=0.02)
    assert scored.effective_rows == pytest.approx(rows * 0.8)  # (1 + 3)^2 / (2 (1 + 9))
    assert 0.004 < scored.error < 0.012


def test_correlated_rows_of_a_series_make_the_error_larger():
    rng = np.random.default_rng(0)
    series = np.repeat(np.arange(50), 8)
    right = np.repeat(rng.random(50) < 0.8, 8)
    labels, predicted = np.zeros(400, int), np.where(right, 0, 1)
    together, apart = accuracy(labels, predicted, series), accuracy(labels, predicted, np.arange(400))
    assert together.error == pytest.approx(apart.error * np.sqrt(8), rel=0.05)


@pytest.mark.parametrize("rows", [1, 30])
def test_an_accuracy_of_one_has_an_error(rows):
    scored = accuracy(np.zeros(rows, int), np.zeros(rows, int), np.arange(rows))
    assert scored.value == 1 and scored.error > 0.5 / (rows + 2)
