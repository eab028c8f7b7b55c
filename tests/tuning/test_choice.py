"""Tuned values replace the member's own only if they win by more than the noise over rows and seeds."""

import numpy as np
import pytest

from competition.ensemble.metrics import metric_named
from competition.tuning.choice import gain_over_own_values

LABELS = np.arange(400) % 4


def predictions(accuracy: float, seed: int) -> np.ndarray:
    """(400, 4) probabilities whose argmax is right for about this share of the rows."""
    rng = np.random.default_rng(seed)
    right = rng.random(len(LABELS)) < accuracy
    answers = np.where(right, LABELS, (LABELS + rng.integers(1, 4, len(LABELS))) % 4)
    return np.eye(4)[answers]


@pytest.mark.parametrize("metric", ["macro_f1", "accuracy", "log_loss"])
def test_a_clear_improvement_is_a_gain_and_a_loss_is_none(metric: str) -> None:
    worse = [predictions(0.6, seed) * 0.9 + 0.025 for seed in (1, 2)]
    better = [predictions(0.8, seed) * 0.9 + 0.025 for seed in (3, 4)]
    assert gain_over_own_values(LABELS, worse, better, metric_named(metric), 4, 0).is_gain
    assert not gain_over_own_values(LABELS, better, worse, metric_named(metric), 4, 0).is_gain


def test_equally_good_settings_win_about_as_often_as_one_standard_error_allows() -> None:
    """P(z > 1) is .16; a rule without noise would adopt half of them."""
    wins = 0
    for n in range(40):
        before = [predictions(0.8, 1000 * n + seed) for seed in range(2)]
        after = [predictions(0.8, 1000 * n + 500 + seed) for seed in range(2)]
        wins += gain_over_own_values(LABELS, before, after, metric_named("accuracy"), 4, n).is_gain
    assert wins / 40 < 0.3


def test_seeds_that_disagree_widen_the_error() -> None:
    steady = gain_over_own_values(
        LABELS, [predictions(0.6, 1)] * 2, [predictions(0.8, 2)] * 2, metric_named("accuracy"), 4, 0
    )
    before, after = [predictions(0.8, 1), predictions(0.3, 2)], [predictions(0.8, 3)] * 2
    torn = gain_over_own_values(LABELS, before, after, metric_named("accuracy"), 4, 0)
    assert torn.error > 3 * steady.error and (steady.seeds, steady.rows) == (2, 400)
