from dataclasses import replace

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.ensemble.blend import BLENDS, Blend, fit_blend
from competition.ensemble.metrics import METRICS
from competition.ensemble.mixing import mix
from competition.ensemble.stacking import sampled_rows

from .simulated import BLEND, draw

F1 = METRICS["macro_f1"]


def named(probs):
    return {f"m{m}": p for m, p in enumerate(probs)}


@pytest.mark.parametrize("method", BLENDS)
def test_every_method_gives_probabilities_is_not_worse_than_its_start_and_ignores_the_order_of_members(method):
    labels, probs = draw([1.0, 1.5, 3.0])
    blend = fit_blend(method, named(probs), labels, F1, BLEND)
    reversed_blend = fit_blend(method, dict(reversed(named(probs).items())), labels, F1, BLEND)
    assert dict(blend.weights) == dict(reversed_blend.weights)
    mixed = blend.mix(named(probs))
    weights = np.array(list(blend.weights.values()))
    assert (weights >= 0).all()
    if method != "stacking":
        assert weights.sum() == pytest.approx(1)
    if method != "rank":
        assert np.allclose(mixed.sum(1), 1, atol=1e-5)
    if method in ("greedy", "coordinate", "nelder_mead", "optuna"):
        assert F1.evaluate(labels, mixed) >= F1.evaluate(labels, probs.mean(0))


@pytest.mark.parametrize("method", ["greedy", "bagged", "coordinate", "nelder_mead", "optuna", "stacking", "best"])
def test_a_member_of_pure_noise_gets_almost_no_weight(method):
    labels, probs = draw([1.0, 1.2])
    noise = np.random.default_rng(9).dirichlet(np.ones(5) * 0.3, len(labels)).astype(np.float32)
    blend = fit_blend(method, {**named(probs), "noise": noise}, labels, F1, BLEND)
    assert blend.weights["noise"] < min(0.2, *(w for n, w in blend.weights.items() if n != "noise" and w))


def test_zero_weight_members_may_be_missing_but_others_and_unknown_methods_are_errors():
    _, probs = draw([1.0, 1.0])
    blend = Blend("greedy", "mean", {"m0": 1.0, "m1": 0.0})
    assert np.allclose(blend.mix({"m0": probs[0]}), probs[0], atol=1e-6)
    with pytest.raises(UserError, match="1 blended members have no predictions, first \\['m0'\\]"):
        blend.mix({"m1": probs[1]})
    labels, probs = draw([1.0])
    with pytest.raises(UserError, match="'slsqp' is not known; expected one of equal"):
        fit_blend("slsqp", named(probs), labels, F1, BLEND)


def test_stacking_calibrates_overconfident_members_by_the_sum_of_the_weights():
    labels, probs = draw([1.0, 1.0], rows=2000)
    sharp = probs**3 / (probs**3).sum(-1, keepdims=True)
    stacked = fit_blend("stacking", named(sharp), labels, F1, BLEND)
    assert sum(stacked.weights.values()) < 0.8
    log_loss = METRICS["log_loss"]
    assert log_loss.evaluate(labels, stacked.mix(named(sharp))) > log_loss.evaluate(labels, sharp.mean(0))


def test_stacking_stays_near_equal_weights_until_the_rows_contradict():
    def share_of_the_better(rows):
        labels, probs = draw([1.0, 1.6], rows=rows)
        weights = fit_blend("stacking", named(probs), labels, F1, BLEND).weights
        return weights["m0"] / sum(weights.values())

    few, many = (share_of_the_better(rows) for rows in (4, 3000))
    assert 0.5 < few < 0.6 and 0.68 < many < 0.72


def test_members_without_information_get_equal_weights_and_nearly_even_probabilities():
    rng = np.random.default_rng(0)
    labels, probs = rng.integers(0, 3, 900), rng.dirichlet(np.ones(3), (2, 900)).astype(np.float32)
    blend = fit_blend("stacking", named(probs), labels, F1, BLEND)
    assert 0 < sum(blend.weights.values()) < 0.15 and blend.mix(named(probs)).max() < 0.5
    wrong = np.roll(np.eye(3, dtype=np.float32)[labels] * 0.8 + 0.1, 1, axis=1)  # surer of a wrong class
    worse = fit_blend("stacking", {"m0": wrong}, labels, F1, BLEND)
    assert 0 < worse.weights["m0"] < 0.1 and worse.mix({"m0": wrong}).max() < 0.5


def test_stacking_of_a_regression_gives_weights_of_sum_1_that_suit_the_errors():
    rng = np.random.default_rng(0)
    targets = 50 + 10 * rng.normal(size=400)
    values = np.stack([targets + noise * rng.normal(size=400) for noise in (1.0, 2.0, 20.0)])[:, :, None]
    blend = fit_blend("stacking", named(values.astype(np.float32)), targets, METRICS["rmse"], BLEND)
    assert sum(blend.weights.values()) == pytest.approx(1)
    assert blend.weights["m0"] == pytest.approx(0.8, abs=0.05) and blend.weights["m2"] < 0.05  # inverse variances


def test_stacking_of_labels_that_do_not_exclude_each_other_mixes_their_log_odds():
    rng = np.random.default_rng(0)
    labels = rng.random((300, 4)) < 0.3
    logits = np.where(labels, 1.5, -1.5)
    probs = [1 / (1 + np.exp(-(logits + noise * rng.normal(size=logits.shape)))) for noise in (0.5, 5.0)]
    blend = fit_blend("stacking", named(np.float32(probs)), labels, METRICS["multilabel_mean_column_auc"], BLEND)
    assert blend.mixing == "log_odds" and blend.weights["m0"] > 5 * blend.weights["m1"]


def test_weights_of_many_rows_are_fitted_to_a_sample_that_does_not_depend_on_labels(monkeypatch):
    monkeypatch.setattr("competition.ensemble.stacking.ENTRIES", 1_000 * 3 * 5)
    rows = np.arange(100, 5_100)
    few = sampled_rows(3, rows, 5)
    assert len(few) == 1_000 and np.isin(few, rows).all() and (np.diff(few) > 0).all()
    assert sampled_rows(3, rows[:900], 5) is not few and len(sampled_rows(3, rows[:900], 5)) == 900


def test_a_strong_ridge_keeps_stacking_at_the_equal_geometric_mean():
    labels, probs = draw([1.0, 3.0])
    stacked = fit_blend("stacking", named(probs), labels, F1, replace(BLEND, ridge=1e9))
    assert np.allclose(stacked.mix(named(probs)), mix(probs, np.array([0.5, 0.5]), "geometric"), atol=1e-3)


def test_each_mixing_computes_its_mean():
    probs = np.array([[[0.8, 0.2]], [[0.2, 0.8]], [[0.5, 0.5]]], np.float32)
    assert np.allclose(mix(probs, np.array([0.5, 0, 0.5]), "mean"), [[0.65, 0.35]])
    odds = np.sqrt(4 * 1)
    assert np.allclose(mix(probs, np.array([0.5, 0, 0.5]), "geometric"), [[odds / (1 + odds), 1 / (1 + odds)]])


def test_a_rank_mean_does_not_depend_on_a_members_scale():
    labels, probs = draw([1.0, 1.5], rows=200)
    rescaled = 0.2 + 0.001 * probs[1]  # the same order, all but equal
    auc, equal_weights = METRICS["mean_column_auc"], np.array([0.5, 0.5])
    pairs = np.stack([probs[0], probs[1]]), np.stack([probs[0], rescaled])
    score, rescaled_score = (auc.evaluate(labels, mix(pair, equal_weights, "rank")) for pair in pairs)
    assert score == pytest.approx(rescaled_score, abs=2e-3)
    with pytest.raises(UserError, match="mixing 'median' is not known"):
        mix(probs, equal_weights, "median")
