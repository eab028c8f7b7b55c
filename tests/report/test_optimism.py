"""The computed optimism of the best candidate agrees with the true one where true scores are known."""

import numpy as np
import pytest

from competition.ensemble.bootstrap import Evaluation, resampled
from competition.ensemble.metrics import METRICS
from competition.report.repeated_choices import expected_optimism, normal_optimism

ACCURACY = METRICS["accuracy"]
ROWS, CLASSES, SIMULATIONS = 300, 3, 60


def outputs(rng: np.random.Generator, labels: np.ndarray, accuracies: np.ndarray, common: float) -> list[np.ndarray]:
    """(N,) labels per candidate; all candidates predict a share `common` of the rows identically."""
    is_common, common_draw = rng.random(len(labels)) < common, rng.random(len(labels))
    draws = [np.where(is_common, common_draw, rng.random(len(labels))) for _ in accuracies]
    return [np.where(draw < accuracy, labels, (labels + 1) % CLASSES) for draw, accuracy in zip(draws, accuracies)]


def true_and_expected(accuracies: np.ndarray, common: float) -> tuple[np.ndarray, np.ndarray]:
    """Per simulation: score minus true accuracy of the best candidate, and the optimism computed from the outputs."""
    optimism, expected = [], []
    for seed in range(SIMULATIONS):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, CLASSES, ROWS)
        candidates = outputs(rng, labels, accuracies, common)
        scores = np.array([np.mean(output == labels) for output in candidates])
        optimism.append(scores.max() - accuracies[scores.argmax()])
        draws = np.stack(resampled(labels, candidates, Evaluation(ACCURACY, CLASSES, 100, seed)))
        expected.append(expected_optimism(scores, draws))
    return np.array(optimism), np.array(expected)


@pytest.mark.parametrize(("candidates", "common"), [(2, 0.8), (20, 0.0)])
def test_the_optimism_of_equal_candidates_is_the_true_one_within_error(candidates: int, common: float) -> None:
    optimism, expected = true_and_expected(np.full(candidates, 0.8), common)
    error = optimism.std() / SIMULATIONS**0.5
    assert abs(optimism.mean() - expected.mean()) < 2.5 * error
    assert expected.mean() > 0


def test_much_worse_candidates_do_not_change_the_optimism_of_the_best() -> None:
    """They cannot be the best, and their distance does not say that the best ones differ by more than noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, ROWS)
    candidates = outputs(rng, labels, np.array([0.90, 0.91, *[0.5] * 8]), 0.0)
    scores = np.array([np.mean(output == labels) for output in candidates])
    draws = np.stack(resampled(labels, candidates, Evaluation(ACCURACY, CLASSES, 200, 0)))
    assert expected_optimism(scores, draws) == expected_optimism(scores[:2], draws[:2]) > 0.005


@pytest.mark.parametrize(("candidates", "largest"), [(2, 0.5642), (3, 0.8463), (10, 1.5388), (50, 2.2491)])
def test_the_normal_approximation_is_the_known_mean_of_the_largest(candidates: int, largest: float) -> None:
    assert normal_optimism(candidates, 2.0) == pytest.approx(2 * largest, abs=2e-3)
