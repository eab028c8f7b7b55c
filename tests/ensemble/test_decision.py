"""How probabilities become labels: priors, thresholds, and probabilities adapted to rows of other class shares."""

from dataclasses import replace

import numpy as np
import pytest
from builders import params

from competition.config.errors import UserError
from competition.ensemble.decision import TAUS, Decision, fit_decision, rules_for
from competition.ensemble.label_shift import adapted_to_rows
from competition.ensemble.metrics import METRICS
from competition.ensemble.settings import chain_settings

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
    assert F1.evaluate(fresh, rule.labels(blind), 8) - F1.evaluate(fresh, blind) > 0.01


def test_the_exponent_is_pulled_towards_argmax_as_far_as_the_rows_leave_it_uncertain() -> None:
    def mean_gains(pull: float) -> tuple[float, float]:
        """Over argmax on fresh rows: of the rule fitted to 200 rows, and of the exponent that is best on these."""
        gains = []
        for seed in range(20):
            labels, probs = pulled(pull, 200, seed)
            fitted = fit_decision("prior", probs, labels, F1, DECISION)
            rarities = -np.log(np.bincount(labels, minlength=8) / 200)
            best = max(TAUS, key=lambda tau: F1.evaluate(labels, (np.log(probs) + tau * rarities).argmax(1), 8))
            fresh, unseen = pulled(pull, 20_000, 1_000 + seed)
            outputs = [fitted.labels(unseen), (np.log(unseen) + best * rarities).argmax(1)]
            gains.append([F1.evaluate(fresh, output, 8) - F1.evaluate(fresh, unseen) for output in outputs])
        pulled_back, plain = np.mean(gains, axis=0)
        return pulled_back, plain

    pulled_back, plain = mean_gains(pull=0.0)  # argmax is right: each exponent but 0 loses
    assert 0.6 * plain < pulled_back < 0
    pulled_back, plain = mean_gains(pull=1.5)
    assert pulled_back > 0.9 * plain > 0.005


def test_thresholds_raise_kappa_of_ordered_classes():
    rng = np.random.default_rng(0)
    grade = rng.choice(5, 2000, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    probs = softmax(-0.7 * ((grade + 1.2 * rng.normal(size=2000))[:, None] - np.arange(5)) ** 2)
    rule = fit_decision("thresholds", probs, grade, KAPPA, replace(DECISION, passes=2))
    assert list(rule.thresholds) == sorted(rule.thresholds) and len(rule.thresholds) == 4
    assert KAPPA.evaluate(grade, rule.labels(probs), 5) > KAPPA.evaluate(grade, probs) + 0.005
    # A threshold up to the expected class number counts.
    rule = Decision("thresholds", (), (0.5, 1.5), 0.0)
    assert rule.labels(np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0.2, 0.8]])).tolist() == [0, 1, 2]


def test_thresholds_are_a_candidate_only_for_ordered_classes():
    rules = ("argmax", "prior", "thresholds")
    kinds = [rules_for(metric, rules) for metric in (KAPPA, F1, METRICS["log_loss"], METRICS["accuracy"])]
    assert kinds == [rules, ("argmax", "prior"), ("argmax",), ("argmax",)]
    with pytest.raises(UserError, match="expected argmax for macro_f1"):
        rules_for(F1, ("thresholds",))


PRIOR = np.array([0.6, 0.3, 0.1])


def rows(shares: np.ndarray, count: int = 4_000) -> tuple[np.ndarray, np.ndarray]:
    """Labels of these shares, and the probabilities of a model that is calibrated for rows of the shares PRIOR."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, count, p=shares)
    evidence = rng.normal(size=(count, 3)) + 1.5 * np.eye(3)[labels]
    odds = PRIOR * np.exp(1.5 * evidence)
    return labels, (odds / odds.sum(1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("shares", [(0.1, 0.3, 0.6), (0.34, 0.33, 0.33), (0.0, 0.5, 0.5)])
def test_other_shares_are_found_and_more_labels_are_right(shares) -> None:
    labels, probs = rows(np.array(shares))
    adapted, found = adapted_to_rows(probs, PRIOR)
    assert found == pytest.approx(shares, abs=0.03) and found.sum() == pytest.approx(1)
    before, after = ((each.argmax(1) == labels).mean() for each in (probs, adapted))
    assert after > before + 0.02
    assert adapted.dtype == np.float32 and np.allclose(adapted.sum(1), 1, atol=1e-5)


def test_a_class_without_training_rows_gets_no_row_that_is_not_certain() -> None:
    probs = np.array([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0]], np.float32)
    adapted, found = adapted_to_rows(probs, np.array([0.5, 0.5, 0.0]))
    assert np.isfinite(adapted).all() and found[2] == pytest.approx(0, abs=1e-6)


def test_only_probabilities_of_single_labels_are_adapted() -> None:
    with pytest.raises(UserError, match=r"blend\.class_shares: test was found; only probabilities of single labels"):
        chain_settings(params("blend.class_shares=test"), METRICS["rmse"])
