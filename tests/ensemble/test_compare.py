import numpy as np
import pytest

from competition.ensemble.blend import Blend
from competition.ensemble.compare import changed_rows, compare, gain_in_seed_noise, seed_noise
from competition.ensemble.diversity import diversity
from competition.ensemble.metrics import METRICS
from competition.errors import Refusal

from .worlds import draw

F1 = METRICS["macro_f1"]


def test_a_comparison_names_the_rows_that_changed():
    ids, labels = np.array(["a", "b", "c", "d"]), np.array([0, 1, 1, 0])
    found = compare(ids, labels, np.array([0, 1, 0, 0]), np.array([0, 1, 1, 1]), F1, 2, 50, seed=0)
    assert found.changed == (("c", 0, 1), ("d", 0, 1))
    assert (found.difference.changed, found.difference.corrected, found.difference.corrupted) == (2, 1, 1)
    assert changed_rows(ids, labels, labels) == ()


def test_probabilities_compare_by_their_own_metric():
    labels, (one, two) = draw([1.0, 2.0])
    found = compare(np.arange(400).astype(str), labels, two, one, METRICS["log_loss"], 5, 200, seed=0)
    assert found.difference.is_real and len(found.changed) == (one.argmax(1) != two.argmax(1)).sum()


def test_the_noise_of_a_seed_is_the_spread_of_scores_nothing_else_explains():
    labels, probs = draw([1.5, 1.5, 1.5], rows=1000)
    noise = seed_noise(labels, [p.argmax(1) for p in probs], F1, 5)
    assert noise.scores == tuple(F1.score(labels, p) for p in probs)
    assert noise.spread == pytest.approx(np.std(noise.scores, ddof=1))
    assert noise.changed == pytest.approx(
        np.mean([(probs[a].argmax(1) != probs[b].argmax(1)).mean() for a, b in ((0, 1), (0, 2), (1, 2))])
    )
    assert gain_in_seed_noise(2 * np.sqrt(2) * noise.spread, noise) == pytest.approx(2)
    with pytest.raises(Refusal, match="two seeds or more, found 1"):
        seed_noise(labels, [labels], F1, 5)


def test_seeds_that_agree_in_everything_make_any_gain_real():
    labels = np.arange(10) % 2
    noise = seed_noise(labels, [labels, labels], F1, 2)
    assert gain_in_seed_noise(0.01, noise) == np.inf and gain_in_seed_noise(0.0, noise) == 0


def test_clones_agree_everywhere_and_are_worth_nothing():
    labels, probs = draw([1.5, 1.5, 2.5], rows=600)
    members = {"a": probs[0], "b": probs[1], "clone": probs[0]}
    equal = Blend("equal", "mean", dict.fromkeys(members, 1 / 3), ())
    table = diversity(members, labels, equal, F1)
    assert table.names == ("a", "b", "clone")
    assert table.agreement[0, 2] == 1 and table.agreement[0, 1] < 0.95
    assert table.error_correlation[0, 2] == pytest.approx(1) and table.error_correlation[0, 1] < 0.9
    assert table.worth[1] > table.worth[2] == pytest.approx(table.worth[0])
    assert table.score.tolist() == [F1.score(labels, members[n]) for n in table.names]


def test_correlation_of_errors_is_pearsons():
    labels, probs = draw([1.5, 2.5])
    table = diversity(dict(zip("ab", probs, strict=True)), labels, Blend("x", "mean", {"a": 0.5, "b": 0.5}, ()), F1)
    wrong = probs.argmax(2) != labels
    assert np.allclose(table.error_correlation, np.corrcoef(wrong))


def test_what_cannot_be_told_is_nan_and_a_member_without_weight_is_worth_nothing():
    labels, probs = draw([1.5, 2.5])
    perfect = np.eye(5, dtype=np.float32)[labels]
    members = {"a": probs[0], "perfect": perfect}
    alone = diversity(members, labels, Blend("x", "mean", {"a": 1.0, "perfect": 0.0}, ()), F1)
    assert np.isnan(alone.error_correlation[0, 1])
    assert np.isnan(alone.worth[0]) and alone.worth[1] == 0


def test_without_a_member_the_others_take_over_its_weight():
    labels, (a, b) = draw([1.5, 2.5])
    loss, pool = METRICS["log_loss"], Blend("x", "geometric", {"a": 0.4, "b": 0.6}, ())
    table = diversity({"a": a, "b": b}, labels, pool, loss)
    whole = loss.score(labels, pool.mix({"a": a, "b": b}))
    assert np.allclose(table.worth, [whole - loss.score(labels, b), whole - loss.score(labels, a)], atol=1e-5)
