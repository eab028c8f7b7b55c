import numpy as np
import pytest

from competition.ensemble.calibration import COLDEST, HOTTEST, apply_temperature, fit_temperature
from competition.ensemble.metrics import METRICS

from .simulated import draw, softmax


@pytest.mark.parametrize("planted", [0.5, 1.0, 2.5])
def test_a_planted_temperature_is_found(planted):
    # Labels drawn from the probabilities themselves: calibrated at temperature 1.
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(20_000, 6))
    probs = softmax(logits)
    labels = (rng.random((20_000, 1)) > probs.cumsum(1)).sum(1).clip(0, 5)
    assert fit_temperature(softmax(logits * planted), labels) == pytest.approx(planted, rel=0.05)


def test_the_fitted_temperature_has_the_lowest_log_loss():
    labels, (probs,) = draw([1.5])
    best = fit_temperature(probs, labels)
    loss = METRICS["log_loss"]
    scores = [loss.evaluate(labels, apply_temperature(probs, factor * best)) for factor in (0.9, 1, 1.1)]
    assert scores[1] == max(scores)


def test_the_order_of_classes_is_kept_rows_sum_to_one_and_temperature_1_changes_no_bit():
    _, (probs,) = draw([1.5])
    hot = apply_temperature(probs, 2.0)
    assert np.array_equal(hot.argsort(1), probs.argsort(1))
    assert np.allclose(hot.sum(1), 1, atol=1e-6)
    assert np.array_equal(apply_temperature(probs, 1.0), probs)


def test_a_member_that_is_always_right_or_always_wrong_has_a_finite_temperature():
    labels = np.array([0, 1, 2] * 5)
    right = np.eye(3, dtype=np.float32)[labels]
    assert fit_temperature(right * 0.9 + 0.1 / 3, labels) < 2 * COLDEST
    assert fit_temperature(right[::-1] * 0.9 + 0.1 / 3, (labels + 1) % 3) <= HOTTEST
    assert np.isfinite(fit_temperature(right, labels))
