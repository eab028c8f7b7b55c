import numpy as np
import pytest

from competition.config.errors import UserError
from competition.ensemble.blend import Blend
from competition.ensemble.bootstrap import Evaluation
from competition.ensemble.chain import Chain
from competition.ensemble.compare import compare, diversity, seed_noise, seed_noise_of_difference
from competition.ensemble.decision import ARGMAX
from competition.ensemble.metrics import METRICS

from .simulated import as_members, draw

F1 = METRICS["macro_f1"]


def test_a_comparison_names_the_rows_that_changed():
    ids, labels = np.array(["a", "b", "c", "d"]), np.array([0, 1, 1, 0])
    result = compare(ids, labels, np.array([0, 1, 0, 0]), np.array([0, 1, 1, 1]), Evaluation(F1, 2, 50, seed=0))
    assert result.changed == (("c", 0, 1), ("d", 0, 1))
    assert (result.difference.changed, result.difference.corrected, result.difference.corrupted) == (2, 1, 1)
    assert compare(ids, labels, labels, labels, Evaluation(F1, 2, 50, seed=0)).changed == ()


@pytest.mark.parametrize("name", ["macro_f1", "log_loss"])
def test_an_exchange_of_the_two_results_changes_the_sign_of_the_difference_and_nothing_else(name):
    labels, probs = draw([1.5, 1.5], rows=300)
    first, second = (METRICS[name].output_of(p, p.argmax(1)) for p in probs)
    evaluation, ids = Evaluation(METRICS[name], 5, 50, seed=0), np.arange(300)
    one, other = (compare(ids, labels, *pair, evaluation).difference for pair in ((first, second), (second, first)))
    assert one.value and one.error and one.changed > 12
    assert (other.value, other.low, other.high) == (-one.value, -one.high, -one.low)
    assert (other.error, other.p_value, other.changed) == (one.error, one.p_value, one.changed)
    assert (other.corrected, other.corrupted) == (one.corrupted, one.corrected)


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


def test_identical_members_agree_on_all_rows_and_contribute_nothing():
    labels, probs = draw([1.5, 1.5, 2.5], rows=600)
    probs[2], names = probs[0], ("m0", "m1", "m2")
    blend = Blend("equal", "mean", dict.fromkeys(names, 1 / 3))
    chain = Chain("macro_f1", {name: {"identity": 1.0} for name in names}, blend, ARGMAX)
    table = diversity(chain, as_members(probs), labels, np.arange(600), F1)
    assert table.names == names
    assert table.agreement[0, 2] == 1 and table.agreement[0, 1] < 0.95
    assert table.error_correlation[0, 2] == pytest.approx(1) and table.error_correlation[0, 1] < 0.9
    assert table.worth[1] > table.worth[2] == pytest.approx(table.worth[0])
    assert np.allclose(table.score, [F1.evaluate(labels, p) for p in probs], atol=5e-3)
