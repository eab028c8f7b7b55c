import numpy as np
import pytest

from competition.ensemble.blend_weights import BLENDS, Blend, best_alone, fit_blend, stack
from competition.ensemble.greedy_selection import greedy_picks
from competition.ensemble.metrics import METRICS

from .simulated import BLEND, draw

F1 = METRICS["macro_f1"]


def named(probs):
    return {f"m{m}": p for m, p in enumerate(probs)}


def fitted(method, members, labels, metric=F1):
    if method == "best":
        return best_alone(members, lambda name: metric.evaluate(labels, members[name]), metric.target)
    return fit_blend(method, members, members.__getitem__, labels, metric, BLEND)


@pytest.mark.parametrize("method", BLENDS)
def test_every_method_gives_probabilities_ignores_the_order_of_members_and_gives_noise_little_weight(method):
    labels, probs = draw([1.0, 1.5])
    noise = np.random.default_rng(9).dirichlet(np.ones(5) * 0.3, len(labels)).astype(np.float32)
    members = {**named(probs), "noise": noise}
    blend = fitted(method, members, labels)
    assert dict(blend.weights) == dict(fitted(method, dict(reversed(members.items())), labels).weights)
    mixed, weights = blend.mix(members), np.array(list(blend.weights.values()))
    assert (weights >= 0).all() and np.allclose(mixed.sum(1), 1, atol=1e-5)
    if method != "stacking":
        assert weights.sum() == pytest.approx(1)
    if method == "greedy":
        assert F1.evaluate(labels, mixed) >= F1.evaluate(labels, np.mean(list(members.values()), 0))
    if method != "equal":
        assert blend.weights["noise"] < min(0.2, *(w for n, w in blend.weights.items() if n != "noise" and w))


def test_zero_weight_members_may_be_missing():
    _, probs = draw([1.0, 1.0])
    blend = Blend("greedy", "mean", {"m0": 1.0, "m1": 0.0})
    assert np.allclose(blend.mix({"m0": probs[0]}), probs[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_stacking_finds_the_minimum_of_log_loss_plus_penalty(kind):
    from scipy.optimize import minimize
    from scipy.special import expit, log_softmax, logit

    labels, probs = draw([0.6, 2.0], rows=60)
    parts = np.log(probs) if kind == "single" else logit(np.clip(probs, 1e-4, 1 - 1e-4))
    true = np.eye(probs.shape[2], dtype=bool)[labels]

    def objective(weights):
        logits, deviation = np.tensordot(weights, parts, 1), 2 * weights - 1
        signed = np.where(true, logits, -logits)
        likelihoods = log_softmax(logits, 1)[true] if kind == "single" else np.log(expit(signed))
        return -likelihoods.sum() + 5.0 * deviation @ deviation

    expected = minimize(objective, [0.4, 0.4], method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-8}).x
    assert np.allclose(stack(parts, labels if kind == "single" else true, 5.0, kind), expected, atol=0.005)
    assert expected[0] - expected[1] > 0.1  # not the equal weights, where the search starts


def test_stacking_of_a_regression_gives_weights_of_sum_1_that_suit_the_errors():
    rng = np.random.default_rng(0)
    targets = 50 + 10 * rng.normal(size=400)
    values = np.stack([targets + noise * rng.normal(size=400) for noise in (1.0, 2.0, 20.0)])[:, :, None]
    blend = fitted("stacking", named(values.astype(np.float32)), targets, METRICS["rmse"])
    assert sum(blend.weights.values()) == pytest.approx(1)
    assert blend.weights["m0"] == pytest.approx(0.8, abs=0.05) and blend.weights["m2"] < 0.05  # inverse variances


def exhaustive_picks(parts, labels, metric, rounds):
    """The same search, computed without optimisation."""
    picks, best, length = [], -np.inf, 0
    total, rows = np.zeros_like(parts[0]), np.arange(len(labels))
    for n in range(1, rounds + 1):
        divisor = np.float32(n if metric.name == "log_loss" else 1)
        scores = [metric.evaluate(labels, (total + p) / divisor) for p in parts]
        likelihoods = [np.log(np.maximum((total + p)[rows, labels], 1e-7)).mean(dtype=np.float64) for p in parts]
        pick = max(range(len(parts)), key=lambda m: (scores[m], np.round(likelihoods[m], 5), -m))
        picks.append(pick)
        total += parts[pick]
        if scores[pick] > best:
            best, length = scores[pick], n
    return picks[:length]


@pytest.mark.parametrize("name", ["macro_f1", "macro_f1_present", "accuracy", "quadratic_kappa", "log_loss"])
def test_the_search_equals_the_exhaustive_search(name):
    labels, probs = draw([1.0, 1.5, 2.0, 2.0, 3.0], rows=500, classes=7, signal=2.5)
    assert greedy_picks(probs, labels, METRICS[name], 20, "mean") == exhaustive_picks(probs, labels, METRICS[name], 20)


def test_a_tie_goes_to_the_member_that_leaves_the_truth_most_likely_and_the_shortest_best_prefix_is_kept():
    labels = np.array([0, 1])
    timid = np.array([[0.6, 0.4], [0.4, 0.6]], np.float32)
    sure = np.array([[0.9, 0.1], [0.1, 0.9]], np.float32)
    assert greedy_picks(np.stack([timid, sure]), labels, METRICS["macro_f1"], 1, "mean") == [1]
    assert greedy_picks(np.stack([sure, sure[::-1]]), labels, METRICS["macro_f1"], 10, "mean") == [0]
