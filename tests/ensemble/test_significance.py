from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.false_verdicts import SETTINGS, differences
from competition.ensemble import significance
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.metrics import METRICS
from competition.ensemble.significance import Difference, mcnemar_mid_p
from competition.report.terminal import verdict

F1, ACCURACY = METRICS["macro_f1"], METRICS["accuracy"]
SETTING = {setting.name: setting for setting in SETTINGS}


def with_changes(corrected: int, corrupted: int, rows: int = 1347) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(labels, before, after) of ten classes; 60 rows that both get wrong, the changes spread over the others."""
    labels = np.arange(rows) % 10
    before = labels.copy()
    before[:60] = (labels[:60] + 1) % 10
    after = before.copy()
    before[100 : 100 + corrected] += 1
    after[600 : 600 + corrupted] += 1
    return labels, before % 10, after % 10


def allowed(rate: float, pairs: int) -> float:
    """The claimed rate and three standard errors of counting it on so many pairs."""
    return rate + 3 * np.sqrt(rate * (1 - rate) / pairs)


@pytest.mark.parametrize("metric", [F1, ACCURACY], ids=["macro_f1", "accuracy"])
@pytest.mark.parametrize(("corrected", "corrupted"), [(1, 0), (0, 1), (2, 1), (3, 2), (1, 1)])
def test_one_or_two_changed_rows_are_neither_a_gain_nor_a_loss_nor_a_reason_to_choose(metric, corrected, corrupted):
    for seed in range(5):
        difference = paired(*with_changes(corrected, corrupted), Evaluation(metric, 10, 300, seed))
        assert verdict(difference) == "noise" and not difference.is_better


def test_a_verdict_needs_both_the_exact_test_and_the_standard_error():
    clear = Difference(0.010, 0.003, 0.004, 0.016, changed=20, corrected=17, corrupted=3, swap_p=0.002)
    assert verdict(clear) == "a gain" and verdict(replace(clear, value=-0.010)) == "a loss"
    assert verdict(replace(clear, swap_p=0.06)) == "noise"
    assert verdict(replace(clear, seeds=0.006)) == "noise"
    assert clear.p_value == 0.002 and replace(clear, value=0.0058815).p_value == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize(("corrected", "corrupted"), [(1, 0), (5, 1), (7, 7), (30, 12), (400, 330)])
def test_mcnemar_mid_p_is_the_binomial_tail_with_half_of_the_result_itself(corrected, corrupted):
    rows, larger = corrected + corrupted, max(corrected, corrupted)
    expected = 2 * binom.sf(larger, rows, 0.5) + binom.pmf(larger, rows, 0.5)
    assert mcnemar_mid_p(corrected, corrupted) == pytest.approx(min(expected, 1), rel=1e-9)


def test_a_rule_that_gives_up_common_rows_for_rare_ones_can_be_a_gain():
    """Fourteen rare rows are corrected and thirty common rows broken: accuracy falls, macro-F1 rises."""
    labels = np.repeat([0, 1, 2], [3000, 20, 20])
    before, after = labels.copy(), labels.copy()
    before[3000:3007], before[3020:3027] = 0, 0
    after[:30] = 0
    after[:15], after[15:30] = 1, 2
    difference = paired(labels, before, after, Evaluation(F1, 3, 300, seed=0))
    assert difference.corrected < difference.corrupted
    better = paired(labels, before, np.where(np.arange(3040) < 24, labels, after), Evaluation(F1, 3, 300, seed=0))
    assert better.value > 0 and verdict(better) == "a gain"


@pytest.mark.parametrize("name", ["macro-F1, 10 classes", "log loss, 10 classes"])
def test_at_most_5_percent_of_pairs_of_equal_classifiers_differ_significantly(name, monkeypatch):
    """A short version of benchmarks/false_verdicts.py."""
    monkeypatch.setattr(significance, "SWAPS", 200)
    pairs = 150
    result = list(differences(SETTING[name], pairs, seed=2))
    assert np.mean([d.is_significant for d in result]) <= allowed(0.05, pairs)
    assert np.mean([d.is_better for d in result]) <= allowed(0.16, pairs)
