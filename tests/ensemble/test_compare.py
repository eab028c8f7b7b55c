from dataclasses import replace

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.ensemble.blend import Blend
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.compare import compare, seed_noise, seed_noise_of_difference
from competition.ensemble.diversity import diversity
from competition.ensemble.metrics import METRICS
from competition.report.terminal import gain as text
from competition.report.terminal import verdict

from .simulated import draw

F1 = METRICS["macro_f1"]


def test_a_comparison_names_the_rows_that_changed():
    ids, labels = np.array(["a", "b", "c", "d"]), np.array([0, 1, 1, 0])
    result = compare(ids, labels, np.array([0, 1, 0, 0]), np.array([0, 1, 1, 1]), Evaluation(F1, 2, 50, seed=0))
    assert result.changed == (("c", 0, 1), ("d", 0, 1))
    assert (result.difference.changed, result.difference.corrected, result.difference.corrupted) == (2, 1, 1)
    assert compare(ids, labels, labels, labels, Evaluation(F1, 2, 50, seed=0)).changed == ()


def test_probabilities_compare_by_their_own_metric():
    labels, (before_probs, after_probs) = draw([1.0, 2.0])
    evaluation = Evaluation(METRICS["log_loss"], 5, 200, seed=0)
    result = compare(np.arange(400).astype(str), labels, after_probs, before_probs, evaluation)
    assert result.difference.is_better
    assert len(result.changed) == (before_probs.argmax(1) != after_probs.argmax(1)).sum()


def test_seed_noise_is_the_spread_of_scores_beyond_sampling_error():
    labels, probs = draw([1.5, 1.5, 1.5], rows=1000)
    noise = seed_noise(labels, [p.argmax(1) for p in probs], F1, 5)
    assert noise.scores == tuple(F1.evaluate(labels, p) for p in probs)
    assert noise.spread == pytest.approx(np.std(noise.scores, ddof=1))
    changed = [(probs[a].argmax(1) != probs[b].argmax(1)).mean() for a, b in ((0, 1), (0, 2), (1, 2))]
    assert noise.changed == pytest.approx(np.mean(changed))
    with pytest.raises(UserError, match="two seeds or more, found 1"):
        seed_noise(labels, [labels], F1, 5)


def test_seed_noise_of_a_difference_comes_from_weights_that_the_blends_do_not_share():
    spreads = {"a": 0.003, "b": 0.004}
    alone_a, alone_b, both = {"a": 1.0}, {"b": 1.0}, {"a": 0.5, "b": 0.5}
    assert seed_noise_of_difference(both, both, spreads) == 0
    assert seed_noise_of_difference(alone_a, alone_b, spreads) == pytest.approx(0.005)
    assert seed_noise_of_difference(both, alone_a, spreads) == pytest.approx(0.0025)
    assert seed_noise_of_difference({"a": 2.0, "b": 2.0}, both, spreads) == 0  # stacking's weights do not sum to 1
    assert seed_noise_of_difference(alone_a, alone_a, spreads, retrained=["a"]) == pytest.approx(0.003 * np.sqrt(2))
    assert seed_noise_of_difference(alone_a, alone_b, {}) == 0  # no seed study


def test_a_gain_within_the_spread_over_seeds_is_noise():
    labels, (probs,) = draw([2.0], rows=1000)
    before = probs.argmax(1)
    after = before.copy()
    wrong = np.flatnonzero(before != labels)[:10]
    after[wrong] = labels[wrong]
    gain = paired(labels, before, after, Evaluation(F1, 5, 300, seed=0))
    assert gain.is_better and verdict(gain) == "a gain"
    judged = replace(gain, seeds=2 * gain.value)
    assert not judged.is_better and verdict(judged) == "noise" and "other seeds" in text(judged)
    assert verdict(replace(gain, seeds=gain.error / 4)) == "a gain"
    loss = paired(labels, after, before, Evaluation(F1, 5, 300, seed=0))
    assert verdict(loss) == "a loss" and verdict(replace(loss, seeds=1.0)) == "noise"


def test_identical_members_agree_on_all_rows_and_contribute_nothing():
    labels, probs = draw([1.5, 1.5, 2.5], rows=600)
    members = {"a": probs[0], "b": probs[1], "clone": probs[0]}
    equal = Blend("equal", "mean", dict.fromkeys(members, 1 / 3))
    table = diversity(members, labels, equal, F1)
    assert table.names == ("a", "b", "clone")
    assert table.agreement[0, 2] == 1 and table.agreement[0, 1] < 0.95
    assert table.error_correlation[0, 2] == pytest.approx(1) and table.error_correlation[0, 1] < 0.9
    assert table.worth[1] > table.worth[2] == pytest.approx(table.worth[0])
    assert table.score.tolist() == [F1.evaluate(labels, members[n]) for n in table.names]


def test_correlation_of_errors_is_pearsons():
    labels, probs = draw([1.5, 2.5])
    table = diversity(dict(zip("ab", probs, strict=True)), labels, Blend("x", "mean", {"a": 0.5, "b": 0.5}), F1)
    wrong = probs.argmax(2) != labels
    assert np.allclose(table.error_correlation, np.corrcoef(wrong))


def test_undefined_values_are_nan_and_a_zero_weight_member_contributes_nothing():
    labels, probs = draw([1.5, 2.5])
    perfect = np.eye(5, dtype=np.float32)[labels]
    members = {"a": probs[0], "perfect": perfect}
    alone = diversity(members, labels, Blend("x", "mean", {"a": 1.0, "perfect": 0.0}), F1)
    assert np.isnan(alone.error_correlation[0, 1])
    assert np.isnan(alone.worth[0]) and alone.worth[1] == 0


def test_the_weight_of_a_removed_member_is_distributed_over_the_others():
    labels, (a, b) = draw([1.5, 2.5])
    loss, pool = METRICS["log_loss"], Blend("x", "geometric", {"a": 0.4, "b": 0.6})
    table = diversity({"a": a, "b": b}, labels, pool, loss)
    full_score = loss.evaluate(labels, pool.mix({"a": a, "b": b}))
    assert np.allclose(table.worth, [full_score - loss.evaluate(labels, other) for other in (b, a)], atol=1e-5)
