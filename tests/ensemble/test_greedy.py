import numpy as np
import pytest

from competition.ensemble.greedy import greedy_picks
from competition.ensemble.metrics import METRICS

from .simulated import draw


def exhaustive_picks(parts, labels, metric, rounds):
    """The same search, computed without optimisation."""
    picks, best, length = [], -np.inf, 0
    row_numbers = np.arange(len(labels))
    total = np.zeros_like(parts[0])
    for n in range(1, rounds + 1):
        scores = [metric.evaluate(labels, total + p) for p in parts]
        if metric.name == "log_loss":
            scores = [metric.evaluate(labels, (total + p) / np.float32(n)) for p in parts]
        likelihoods = [np.log(np.maximum((total + p)[row_numbers, labels], 1e-7)).mean(dtype=np.float64) for p in parts]
        pick = max(range(len(parts)), key=lambda m: (scores[m], np.round(likelihoods[m], 5), -m))
        picks.append(pick)
        total += parts[pick]
        if scores[pick] > best:
            best, length = scores[pick], n
    return picks[:length]


@pytest.mark.parametrize("name", ["macro_f1", "macro_f1_present", "accuracy", "quadratic_kappa", "log_loss"])
@pytest.mark.parametrize("seed", range(2))
def test_the_search_equals_the_exhaustive_search(name, seed):
    labels, probs = draw([1.0, 1.5, 2.0, 2.0, 3.0], rows=500, classes=7, seed=seed, signal=2.5)
    assert greedy_picks(probs, labels, METRICS[name], 20, "mean") == exhaustive_picks(probs, labels, METRICS[name], 20)


def test_a_tie_goes_to_the_member_that_leaves_the_truth_most_likely_and_the_shortest_best_prefix_is_kept():
    labels = np.array([0, 1])
    timid = np.array([[0.6, 0.4], [0.4, 0.6]], np.float32)
    sure = np.array([[0.9, 0.1], [0.1, 0.9]], np.float32)
    assert greedy_picks(np.stack([timid, sure]), labels, METRICS["macro_f1"], 1, "mean") == [1]
    assert greedy_picks(np.stack([sure, sure[::-1]]), labels, METRICS["macro_f1"], 10, "mean") == [0]
