from dataclasses import replace

import numpy as np
import pytest
from competition.ensemble.outputs import OutputCache, mix_views

from competition.config.errors import UserError
from competition.ensemble.metrics import METRICS
from competition.ensemble.mixing import mix
from competition.ensemble.policy import fit_policy, rejected_views
from competition.ensemble.predictions import ViewPredictions

from .simulated import POLICY, draw, softmax

F1 = METRICS["macro_f1"]


def member(views, rows=800, seed=0):
    """Views of one member, each with its own noise on the same evidence; noise None: a copy of identity."""
    labels, probs = draw([noise for noise in views.values() if noise is not None], rows, seed=seed)
    probs_of_view, drawn_probs = {}, iter(probs)
    for name, noise in views.items():
        probs_of_view[name] = probs_of_view["identity"] if noise is None else next(drawn_probs)
    ids = np.array([f"i{n}" for n in range(rows)])
    return labels, ViewPredictions(
        ids, tuple(probs_of_view), np.stack(list(probs_of_view.values()), 1).astype(np.float16)
    )


def fit(labels, views, settings, **options):
    return fit_policy(OutputCache(views, settings.mixing, labels), np.arange(len(labels)), F1, settings, **options)


@pytest.mark.parametrize("objective", ["log_likelihood", "metric"])
def test_a_helpful_view_is_selected_and_a_harmful_one_is_not(objective):
    labels, views = member({"identity": 1.5, "flip_lr": 1.5, "rot180": 9.0})
    policy = fit(labels, views, replace(POLICY, objective=objective))
    assert policy.keys() == {"identity", "flip_lr"}
    assert sum(policy.values()) == pytest.approx(1)
    log_loss = METRICS["log_loss"]
    plain = log_loss.evaluate(labels, views.view("identity"))
    assert log_loss.evaluate(labels, mix_views(views, policy, "mean")) > plain


def test_a_view_that_changes_nothing_is_ignored():
    labels, views = member({"identity": 1.5, "twin": None, "twin_of_twin": None})
    assert OutputCache(views, "mean", labels).distinct_views(1e-3) == ["identity"]
    for method in ("mean", "greedy"):
        assert fit(labels, views, replace(POLICY, method=method)) == {"identity": 1.0}


def test_views_that_differ_only_in_a_late_row_are_distinct():
    labels, views = member({"identity": 1.5, "twin": None})
    probs = views.probs.copy()
    probs[-1, 1] = probs[-1, 1][::-1]
    assert OutputCache(replace(views, probs=probs), "mean", labels).distinct_views(1e-3) == ["identity", "twin"]


def test_lower_confidence_alone_does_not_select_a_view():
    rng = np.random.default_rng(0)
    labels, (probs,) = draw([1.5], 2000)
    sure = softmax(4 * np.log(probs))
    blurred = 0.9 * sure + 0.1 * softmax(np.zeros_like(sure) + 0.01 * rng.normal(size=sure.shape))
    ids = np.arange(2000).astype(str)
    views = ViewPredictions(ids, ("identity", "blur"), np.stack([sure, blurred], 1).astype(np.float16))
    log_loss = METRICS["log_loss"]
    # The blurred view has the better likelihood although it contains no more information.
    assert log_loss.evaluate(labels, blurred) > log_loss.evaluate(labels, sure)
    assert fit(labels, views, POLICY).get("blur", 0) < 0.5


@pytest.mark.parametrize("objective", ["log_likelihood", "metric"])
def test_a_gain_within_its_standard_error_keeps_the_plain_view(objective):
    # A second view with the same information and none of its own.
    selected = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        labels, (probs,) = draw([1.5], 300, seed=seed)
        other = softmax(np.log(probs) + 0.02 * rng.normal(size=probs.shape))
        ids = np.arange(300).astype(str)
        views = ViewPredictions(ids, ("identity", "jitter"), np.stack([probs, other], 1).astype(np.float16))
        selected.append("jitter" in fit(labels, views, replace(POLICY, objective=objective)))
    assert sum(selected) <= 4


def test_the_cost_of_the_views_used_stays_within_its_limit():
    labels, views = member({"identity": 1.5, "cheap": 1.5, "dear": 1.2})
    seconds = {"identity": 2.0, "cheap": 2.0, "dear": 20.0}
    assert "dear" in fit(labels, views, POLICY, seconds=seconds)
    limited = fit(labels, views, replace(POLICY, seconds_limit=4.0), seconds=seconds)
    assert limited.keys() == {"identity", "cheap"}
    with pytest.raises(UserError, match=r"policy\.seconds_limit 0\.5 allows no view; the cheapest takes 2 s"):
        fit(labels, views, replace(POLICY, seconds_limit=0.5), seconds=seconds)
    assert len(fit(labels, views, replace(POLICY, seconds_limit=2.0))) == 2  # not timed: a second each


def test_rows_outside_the_choice_are_not_read():
    labels, views = member({"identity": 1.5, "flip_lr": 1.5, "rot180": 1.5})
    rows = np.arange(400)
    changed_labels = labels.copy()
    changed_labels[400:] = 0
    one, two = (fit_policy(OutputCache(views, POLICY.mixing, y), rows, F1, POLICY) for y in (labels, changed_labels))
    assert one == two


def test_the_identity_policy_is_bit_identical_to_prediction_without_tta_and_so_is_a_single_view_of_any_name():
    labels, views = member({"identity": 1.5, "flip_lr": 1.5})
    assert fit(labels, views, replace(POLICY, method="identity")) == {"identity": 1.0}
    assert np.array_equal(mix_views(views, {"identity": 1.0}, "mean"), views.probs[:, 0].astype(np.float32))
    labels, views = member({"given": 1.5})
    assert fit(labels, views, POLICY) == {"given": 1.0}


@pytest.mark.parametrize("mixing", ["mean", "geometric", "rank"])
def test_views_are_averaged_as_members_are(mixing):
    labels, views = member({"identity": 1.5, "flip_lr": 1.5, "rot180": 9.0})
    settings = replace(POLICY, mixing=mixing, objective="metric")
    policy = fit(labels, views, settings)
    assert policy.keys() == {"identity", "flip_lr"}
    mixed, by_hand = mix_views(views, policy, mixing), np.stack([views.view(name) for name in policy])
    assert np.array_equal(mixed, mix(by_hand, np.array(list(policy.values())), mixing))
    rows = np.arange(100, 300)
    assert np.array_equal(mix_views(views, policy, mixing, rows), mix_views(views.at(views.ids[rows]), policy, mixing))


def test_a_geometric_mean_is_searched_by_its_own_likelihood():
    labels, views = member({"identity": 1.5, "flip_lr": 1.5, "rot180": 9.0})
    policy = fit(labels, views, replace(POLICY, mixing="geometric"))
    assert policy.keys() == {"identity", "flip_lr"}
    with pytest.raises(UserError, match="does not work with policy"):
        fit(labels, views, replace(POLICY, mixing="rank"))


def test_every_view_left_out_has_its_reason_and_unknown_settings_are_an_error():
    labels, views = member({"identity": 1.5, "flip_lr": 1.5, "twin": None, "rot180": 9.0})
    policy = fit(labels, views, POLICY)
    assert rejected_views(views, labels, F1, POLICY, policy) == {"twin": "no-op", "rot180": "harmful"}
    limited = replace(POLICY, seconds_limit=1.0)  # one view, each counting a second
    (used_view,) = fit(labels, views, limited)
    unused_view = {"identity": "flip_lr", "flip_lr": "identity"}[used_view]
    assert rejected_views(views, labels, F1, limited, {used_view: 1.0})[unused_view] == "adds nothing"
    assert rejected_views(views, labels, F1, replace(POLICY, method="identity"), {"identity": 1.0}) == {}
    with pytest.raises(UserError, match="method 'best' is not known; expected identity, mean or greedy"):
        fit(labels, views, replace(POLICY, method="best"))
    with pytest.raises(UserError, match="objective 'luck' is not known"):
        fit(labels, views, replace(POLICY, objective="luck"))
