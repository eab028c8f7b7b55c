from dataclasses import replace

import numpy as np
import pytest

from competition.ensemble.metrics import METRICS
from competition.ensemble.stored_predictions import ViewPredictions
from competition.ensemble.tta_policy import STEP_RATIO, ViewCache, fit_policy, mix_views

from .simulated import POLICY, draw, softmax

F1, LOG_LOSS = METRICS["macro_f1"], METRICS["log_loss"]


def stacked(labels, probs_of_view):
    """(labels, predictions of one member under these views)"""
    table = np.stack(list(probs_of_view.values()), 1).astype(np.float16)
    return labels, ViewPredictions(np.arange(len(labels)).astype(str), tuple(probs_of_view), table)


def member(**noise_of_view):
    """Views of one member, each with its own noise on the same evidence."""
    labels, probs = draw(list(noise_of_view.values()), 800)
    return stacked(labels, dict(zip(noise_of_view, probs, strict=True)))


def fit(labels, views, settings=POLICY):
    return fit_policy(ViewCache(views, labels), np.arange(len(labels)), F1, settings)


@pytest.mark.parametrize("objective", ["log_likelihood", "metric"])
def test_a_helpful_view_is_selected_and_a_harmful_one_is_not(objective):
    labels, views = member(identity=1.5, flip_lr=1.5, rot180=9.0)
    policy = fit(labels, views, replace(POLICY, objective=objective))
    assert policy.keys() == {"identity", "flip_lr"} and sum(policy.values()) == pytest.approx(1)
    assert LOG_LOSS.evaluate(labels, mix_views(views, policy)) > LOG_LOSS.evaluate(labels, views.view("identity"))


def test_a_view_that_changes_nothing_is_ignored():
    labels, (probs,) = draw([1.5], 800)
    labels, views = stacked(labels, {"identity": probs, "twin": probs, "twin_of_twin": probs})
    assert ViewCache(views, labels).distinct_views == ["identity"]
    for method in ("mean", "greedy"):
        assert fit(labels, views, replace(POLICY, method=method)) == {"identity": 1.0}


def test_lower_confidence_alone_does_not_select_a_view():
    labels, (probs,) = draw([1.5], 2000)
    sure = softmax(4 * np.log(probs))
    noise = np.random.default_rng(0).normal(size=sure.shape)
    blurred = 0.9 * sure + 0.1 * softmax(0.01 * noise)  # a better likelihood without more information
    assert LOG_LOSS.evaluate(labels, blurred) > LOG_LOSS.evaluate(labels, sure)
    assert fit(*stacked(labels, {"identity": sure, "blur": blurred})).get("blur", 0) < 0.5


def test_the_identity_policy_is_bit_identical_to_prediction_without_tta_and_so_is_a_single_view():
    labels, views = member(identity=1.5, flip_lr=1.5)
    assert fit(labels, views, replace(POLICY, method="identity")) == {"identity": 1.0}
    assert np.array_equal(mix_views(views, {"identity": 1.0}), views.probs[:, 0].astype(np.float32))
    assert fit(*member(identity=1.5)) == {"identity": 1.0}


@pytest.mark.parametrize("planted", [0.5, 2.5])
def test_the_planted_temperature_is_found_on_a_sample_that_does_not_depend_on_labels(planted, monkeypatch):
    monkeypatch.setattr("competition.ensemble.tta_policy.SAMPLE", 8_000)
    rng = np.random.default_rng(0)  # labels drawn from the probabilities themselves: calibrated at temperature 1
    logits = 2 * rng.normal(size=(10_000, 6))
    labels = (rng.random((10_000, 1)) > softmax(logits).cumsum(1)).sum(1).clip(0, 5)
    sharp, train = softmax(logits * planted), np.arange(10_000) < 9_000
    views = ViewPredictions(np.arange(10_000).astype(str), ("identity",), sharp[:, None])
    step = ViewCache(views, labels).temperature_step(train)
    assert STEP_RATIO**step == pytest.approx(planted, rel=0.07)
    assert ViewCache(views, np.where(train, labels, 0)).temperature_step(train) == step
    calibrated = softmax(np.log(np.maximum(sharp, 1e-7)) / STEP_RATIO**step)[np.arange(10_000), labels]
    assert np.allclose(ViewCache(views, labels).true_probs("identity", step), calibrated, atol=2e-3)
