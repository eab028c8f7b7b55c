from dataclasses import replace

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.ensemble.decision import ARGMAX, Decision, fit_decision
from competition.ensemble.metrics import METRICS

from .simulated import DECISION, draw, softmax

F1, KAPPA = METRICS["macro_f1"], METRICS["quadratic_kappa"]


def pulled(pull, rows=3000, seed=0):
    """Members drawn towards common classes: macro-F1 pays for guessing rare ones more often."""
    labels, (probs,) = draw([1.5], rows, 8, seed, signal=2.0)
    share = np.bincount(labels, minlength=8) / rows
    return labels, softmax(np.log(probs) + pull * np.log(share))


def test_the_prior_correction_removes_a_bias_towards_common_classes_on_fresh_rows():
    labels, probs = pulled(1.5)
    rule = fit_decision("prior", probs, labels, F1, DECISION)
    assert rule.tau > 0.5
    fresh, blind = pulled(1.5, seed=1)
    gain = F1.evaluate(fresh, rule.labels(blind), 8) - F1.evaluate(fresh, blind)
    assert gain > 0.01


def test_offsets_are_minus_tau_times_the_log_prior():
    labels, probs = pulled(1.5)
    rule = fit_decision("prior", probs, labels, F1, DECISION)
    share = np.bincount(labels, minlength=8) / len(labels)
    assert np.allclose(rule.offsets, -rule.tau * np.log(share))
    assert np.array_equal(rule.labels(probs), (probs / share**rule.tau).argmax(1))


def test_a_rule_without_gain_changes_nothing():
    labels = np.arange(6) % 3
    assert fit_decision("prior", np.eye(3)[labels], labels, F1, DECISION) == ARGMAX
    assert not any(fit_decision("per_class", np.eye(3)[labels], labels, F1, DECISION).offsets)


def test_per_class_offsets_climb_and_are_shrunk_towards_none():
    labels, probs = pulled(1.5)
    free = fit_decision("per_class", probs, labels, F1, replace(DECISION, shrink_rows=0))
    assert F1.evaluate(labels, free.labels(probs), 8) > F1.evaluate(labels, probs) + 0.02
    shrunk = fit_decision("per_class", probs, labels, F1, replace(DECISION, shrink_rows=100))
    support = np.bincount(labels, minlength=8)
    assert np.allclose(shrunk.offsets, np.array(free.offsets) * support / (support + 100))
    none = fit_decision("per_class", probs, labels, F1, replace(DECISION, shrink_rows=1e12))
    assert np.array_equal(none.labels(probs), probs.argmax(1))


def test_one_coordinate_step_finds_the_best_offset_of_the_grid():
    labels, probs = pulled(1.5, rows=300)
    two = np.stack([probs[:, :4].sum(1), probs[:, 4:].sum(1)], 1)
    halves = (labels >= 4).astype(int)
    rule = fit_decision("per_class", two, halves, F1, replace(DECISION, shrink_rows=0))
    from competition.ensemble.decision import OFFSETS
    from competition.ensemble.mixing import floored_logs

    best = max(F1.evaluate(halves, (floored_logs(two) + np.array([o, 0])).argmax(1), 2) for o in OFFSETS)
    assert F1.evaluate(halves, rule.labels(two), 2) >= best


def test_thresholds_raise_kappa_of_ordered_classes():
    rng = np.random.default_rng(0)
    grade = rng.choice(5, 2000, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    noisy_grade = grade + 1.2 * rng.normal(size=2000)
    probs = softmax(-0.7 * (noisy_grade[:, None] - np.arange(5)) ** 2)
    rule = fit_decision("thresholds", probs, grade, KAPPA, replace(DECISION, passes=2))
    assert list(rule.thresholds) == sorted(rule.thresholds) and len(rule.thresholds) == 4
    assert KAPPA.evaluate(grade, rule.labels(probs), 5) > KAPPA.evaluate(grade, probs) + 0.005
    # A threshold up to the expected class number counts.
    rule = Decision("thresholds", (), (0.5, 1.5), 0.0)
    assert rule.labels(np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0.2, 0.8]])).tolist() == [0, 1, 2]


def test_a_metric_of_probabilities_needs_no_decision_rule_and_an_unknown_rule_is_an_error():
    labels, probs = pulled(1.5, rows=100)
    for rule in ("prior", "per_class", "thresholds"):
        assert fit_decision(rule, probs, labels, METRICS["log_loss"], DECISION) == ARGMAX
    with pytest.raises(UserError, match="'vote' is not known; expected one of argmax, prior"):
        fit_decision("vote", np.eye(2), np.arange(2), F1, DECISION)
