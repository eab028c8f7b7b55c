from dataclasses import replace

import numpy as np

from competition.ensemble.decision import Decision, fit_decision
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
