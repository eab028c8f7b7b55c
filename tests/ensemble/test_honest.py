from dataclasses import replace

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.config.params import Honest
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.chain import Chain, align, apply_chain
from competition.ensemble.honest import fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested import NestedCrossFit, OofRows, blocks_of, select_candidate
from competition.ensemble.outputs import OutputCache, mix_views
from competition.ensemble.policy import fit_policy
from competition.ensemble.predictions import ViewPredictions

from .simulated import BLEND, DECISION, SETTINGS, as_members, cross_fit, draw, fit_chain

F1 = METRICS["macro_f1"]
HONEST = Honest(resamples=300, seed=0, blocks=10)
BAGGED = replace(SETTINGS, blend=replace(BLEND, methods=("bagged",)), decision=replace(DECISION, rules=("argmax",)))
NAMES = [("none", method, rule) for rule in ("argmax", "prior") for method in ("equal", "greedy")]


def folds_of(rows, k=5):
    return np.arange(rows) % k


def test_predictions_of_a_fold_do_not_depend_on_its_labels():
    labels, probs = draw([1.0, 1.5, 2.0, 1.0, 1.5, 2.0], rows=300)
    ids, folds = np.array([f"i{n}" for n in range(300)]), folds_of(300)
    views = {
        name: ViewPredictions(ids, ("identity", "flip_lr", "rot180"), np.stack(list(table), 1).astype(np.float16))
        for name, table in (("a", probs[:3]), ("b", probs[3:]))
    }
    settings = replace(SETTINGS, blend=replace(BLEND, calibrations=("temperature",)))
    crossed = cross_fit(views, labels, folds, settings, HONEST)
    for fold in (0, 3):
        changed_labels = labels.copy()
        changed_labels[folds == fold] = (changed_labels[folds == fold] + 1) % 5
        again = cross_fit(views, changed_labels, folds, settings, HONEST)
        assert np.array_equal(again.probs[folds == fold], crossed.probs[folds == fold])
        assert np.array_equal(again.decided[folds == fold], crossed.decided[folds == fold])
        assert not np.array_equal(again.probs, crossed.probs)  # the others did learn from them


def test_choices_on_pure_noise_raise_the_chosen_on_score_and_not_the_honest_one():
    claimed, honest = [], []
    rules = replace(SETTINGS.decision, rules=("per_class",), shrink_rows=0)
    greedy = replace(SETTINGS, blend=replace(BLEND, methods=("greedy",)), decision=rules)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 4, 300)
        views = as_members(rng.dirichlet(np.ones(4), (12, 300)).astype(np.float32))  # pure noise
        result = fit_and_score_chain(OofRows(views, labels, folds_of(300)), greedy, HONEST)
        claimed.append(result.chosen_on - 0.25)
        honest.append((result.honest.value - 0.25) / result.honest.error)
    assert min(claimed) > 0.04
    assert abs(np.mean(honest)) < 2 / np.sqrt(6) + 0.5


def test_the_weight_of_a_member_that_memorised_its_training_rows_depends_on_unseen_rows_only():
    labels, probs = draw([1.2, 1.2], rows=600)
    folds = folds_of(600)
    rivals = {"m0", "m1"}
    # Five fold models that know their own training rows by heart and guess at random elsewhere.
    rng = np.random.default_rng(3)
    in_sample = np.full((600, 5), 0.001, np.float32)
    in_sample[np.arange(600), labels] = 0.996
    out_of_fold = rng.dirichlet(np.ones(5) * 0.1, 600).astype(np.float32)
    oof = as_members(np.stack([*probs, out_of_fold]))
    result = fit_and_score_chain(OofRows(oof, labels, folds), SETTINGS, HONEST)
    assert result.chain.blend.weights["m2"] < 0.5 * min(result.chain.blend.weights[n] for n in rivals)
    # Had its in-sample predictions been used, it would have had all the weight.
    leaky = fit_and_score_chain(OofRows(as_members(np.stack([*probs, in_sample])), labels, folds), SETTINGS, HONEST)
    assert leaky.chain.blend.weights["m2"] > max(leaky.chain.blend.weights[n] for n in rivals)


def test_the_honest_score_is_that_of_unseen_rows_and_the_chain_is_fitted_on_all():
    labels, probs = draw([1.0, 1.5, 2.5], rows=500)
    views, folds = as_members(probs), folds_of(500)
    result = fit_and_score_chain(OofRows(views, labels, folds), SETTINGS, HONEST)
    crossed = cross_fit(views, labels, folds, SETTINGS, HONEST)
    assert result.honest.value == F1.evaluate(labels, crossed.decided, 5)
    assert result.chain.digest() == fit_chain(views, labels, folds, SETTINGS, HONEST).digest()
    assert result.chosen_on == F1.evaluate(labels, apply_chain(result.chain, views)[1], 5)


def test_cross_fitting_is_fitting_without_the_fold_and_applying_to_it():
    labels, probs = draw([1.0, 1.5, 2.5], rows=300)
    views, folds = as_members(probs), folds_of(300, 3)
    crossed = cross_fit(views, labels, folds, BAGGED, HONEST)
    for fold in range(3):
        training_rows, held_out_rows = folds != fold, folds == fold
        ids = views["m0"].ids
        training_views = align(views, ids[training_rows])
        chain = fit_chain(training_views, labels[training_rows], folds[training_rows], BAGGED, HONEST)
        held_out_probs, held_out_labels = apply_chain(chain, align(views, ids[held_out_rows]))
        assert np.allclose(crossed.probs[held_out_rows], held_out_probs, atol=1e-6)
        assert np.array_equal(crossed.decided[held_out_rows], held_out_labels)


def test_weights_whose_gain_exceeds_their_error_are_chosen():
    labels, probs = draw([0.5, 6.0, 6.0, 6.0, 6.0], rows=500)
    result = fit_and_score_chain(OofRows(as_members(probs), labels, folds_of(500)), SETTINGS, HONEST)
    assert result.chain.blend.method == "bagged"
    assert result.over_equal.is_better
    assert result.chain.used_views().keys() <= {f"m{n}" for n in range(5)} and "m0" in result.chain.used_views()


def a_quarter_wrong():
    """Labels of four classes, and predictions of which the first 100 of 400 are wrong."""
    labels = np.arange(400) % 4
    return labels, np.where(np.arange(400) < 100, (labels + 1) % 4, labels)


def test_the_simplest_candidate_is_replaced_only_by_a_significant_gain():
    labels, wrong = a_quarter_wrong()
    hair = wrong.copy()
    hair[:4], hair[100:103] = labels[:4], (labels[100:103] + 1) % 4  # one row more: noise
    better = wrong.copy()
    better[:60] = labels[:60]
    pick = lambda *outputs: select_candidate(dict(zip(NAMES, outputs, strict=True)), labels, F1, 4, HONEST)  # noqa: E731
    assert pick(wrong, wrong, wrong, wrong) == ("none", "equal", "argmax")
    assert pick(wrong, better, wrong, better) == ("none", "greedy", "argmax")
    assert pick(wrong, wrong, better, wrong) == ("none", "equal", "prior")
    worse = wrong.copy()
    worse[:130] = (labels[:130] + 1) % 4
    assert pick(wrong, worse, wrong, worse) == ("none", "equal", "argmax")
    assert F1.evaluate(labels, hair, 4) > F1.evaluate(labels, wrong, 4)
    assert pick(wrong, hair, wrong, hair) == ("none", "equal", "argmax")
    best = better.copy()
    best[60:70] = labels[60:70]
    assert pick(wrong, better, wrong, best) == ("none", "greedy", "prior")
    assert pick(wrong, best, wrong, better) == ("none", "greedy", "argmax")
    luck = better.copy()
    luck[60:64], luck[100:103] = labels[60:64], (labels[100:103] + 1) % 4  # one row more than better
    assert pick(wrong, luck, wrong, better) == ("none", "greedy", "prior")


def test_a_gain_of_one_standard_error_does_not_replace_the_simplest_candidate():
    labels, wrong = a_quarter_wrong()
    lucky = wrong.copy()
    lucky[:22] = labels[:22]
    lucky[200:212] = (labels[200:212] + 1) % 4  # 22 rows right, 12 spoilt
    gain = paired(labels, wrong, lucky, Evaluation(F1, 4, 300, seed=0))
    assert gain.is_better and not gain.is_significant
    simplest, other = ("none", "equal", "argmax"), ("none", "bagged", "argmax")
    assert select_candidate({simplest: wrong, other: lucky}, labels, F1, 4, HONEST) == simplest


def test_two_gains_within_noise_are_selected_if_significant_together():
    labels, wrong = a_quarter_wrong()
    by_method, by_rule, by_both = wrong.copy(), wrong.copy(), wrong.copy()
    by_method[:12], by_method[200:210] = labels[:12], (labels[200:210] + 1) % 4  # twelve rows right, ten spoilt
    by_rule[12:24], by_rule[210:220] = labels[12:24], (labels[210:220] + 1) % 4
    by_both[:50] = labels[:50]
    by_both[200:220] = (labels[200:220] + 1) % 4
    outputs = dict(zip(NAMES, (wrong, by_method, by_rule, by_both), strict=True))
    gains = [paired(labels, wrong, outputs[name], Evaluation(F1, 4, 300, seed=0)) for name in NAMES[1:]]
    assert [gain.is_significant for gain in gains] == [False, False, True]
    assert select_candidate(outputs, labels, F1, 4, HONEST) == ("none", "greedy", "prior")


def test_a_loaded_chain_gives_identical_outputs(tmp_path):
    labels, probs = draw([1.0, 1.5, 2.5], rows=300)
    views = as_members(probs)
    for methods, rules in ((("stacking",), ("per_class",)), (("bagged",), ("thresholds",)), (("rank",), ("argmax",))):
        settings = replace(
            SETTINGS,
            metric="quadratic_kappa" if rules == ("thresholds",) else "macro_f1",
            blend=replace(BLEND, methods=methods, calibrations=("temperature",)),
            decision=replace(DECISION, rules=rules),
        )
        chain = fit_chain(views, labels, folds_of(300), settings, HONEST)
        chain.save(tmp_path / "chain.json")
        loaded_chain = Chain.load(tmp_path / "chain.json")
        assert loaded_chain.digest() == chain.digest()
        for output, loaded_output in zip(apply_chain(chain, views), apply_chain(loaded_chain, views), strict=True):
            assert np.array_equal(output, loaded_output)
    (tmp_path / "chain.json").write_text("{}")
    with pytest.raises(UserError, match="is not a valid chain"):
        Chain.load(tmp_path / "chain.json")


def test_rows_are_joined_by_id_in_any_order():
    labels, probs = draw([1.0, 1.5], rows=200)
    views = as_members(probs)
    chain = fit_chain(views, labels, folds_of(200), BAGGED, HONEST)
    turned = views["m0"].ids[::-1]
    assert np.array_equal(apply_chain(chain, align(views, turned))[1], apply_chain(chain, views)[1][::-1])


def test_members_that_do_not_match_are_an_error_with_their_name():
    labels, probs = draw([1.0, 1.5], rows=50)
    views = as_members(probs)
    other = {**views, "m1": views["m1"].at(views["m1"].ids[::-1])}
    with pytest.raises(UserError, match="member 'm1' has other ids, or another order"):
        fit_chain(other, labels, folds_of(50), BAGGED, HONEST)
    few = {**views, "m1": views["m1"].at(views["m1"].ids[:40])}
    with pytest.raises(UserError, match="member 'm1': 10 of 50 ids have no prediction"):
        align(few, views["m0"].ids)
    narrow = ViewPredictions(views["m0"].ids, ("identity",), np.full((50, 1, 2), 0.5, np.float16))
    with pytest.raises(UserError, match="different numbers of classes"):
        align({**views, "m1": narrow}, views["m0"].ids)
    with pytest.raises(UserError, match="at least one member, found none"):
        align({}, views["m0"].ids)


def test_missing_predictions_are_an_error_only_for_members_with_weight():
    labels, probs = draw([0.5, 8.0], rows=300)
    views = as_members(probs)
    best = replace(BAGGED, blend=replace(BLEND, methods=("best",)))
    chain = fit_chain(views, labels, folds_of(300), best, HONEST)
    assert chain.used_views() == {"m0": ["identity"]}
    apply_chain(chain, {"m0": views["m0"]})
    with pytest.raises(UserError, match="1 blended members have no predictions, first \\['m0'\\]"):
        apply_chain(chain, {"m1": views["m1"]})


def test_two_folds_are_enough_and_one_is_not():
    labels, probs = draw([1.0, 1.5], rows=200)
    views = as_members(probs)
    result = fit_and_score_chain(OofRows(views, labels, folds_of(200, 2)), SETTINGS, HONEST)
    assert 0 < result.honest.value < 1
    with pytest.raises(UserError, match=r"two folds or more, numbered from 0; found \[0\]"):
        fit_and_score_chain(OofRows(views, labels, np.zeros(200, int)), SETTINGS, HONEST)


@pytest.mark.parametrize("name", ["log_loss", "mean_column_auc", "top_5"])
def test_metrics_of_probabilities_are_cross_fitted_too(name):
    labels, probs = draw([1.0, 1.5], rows=200, classes=6)
    rows = OofRows(as_members(probs), labels, folds_of(200))
    result = fit_and_score_chain(rows, replace(SETTINGS, metric=name), HONEST)
    assert result.chain.decision.rule == "argmax"
    assert result.honest.error > 0


def with_views(rows=400, **options):
    """A member whose second view helps, whose third harms."""
    labels, probs = draw([1.5, 1.5, 8.0], rows=rows, **options)
    ids = np.array([f"i{n:05}" for n in range(rows)])
    table = np.stack(list(probs), 1).astype(np.float16)
    return labels, {"m0": ViewPredictions(ids, ("identity", "flip_lr", "broken"), table)}


def test_view_effects_are_counted_on_rows_that_the_policy_was_not_fitted_on():
    labels, views = with_views()
    folds = folds_of(400)
    effect = fit_and_score_chain(OofRows(views, labels, folds), BAGGED, HONEST).view_effects["m0"]
    plain, after = views["m0"].view("identity").argmax(1), np.zeros(400, int)
    for k in range(5):
        training_rows = np.flatnonzero(folds != k)
        policy = fit_policy(OutputCache(views["m0"], "mean", labels), training_rows, F1, SETTINGS.policy)
        after[folds == k] = mix_views(views["m0"], policy, "mean").argmax(1)[folds == k]
    assert effect.corrected == ((plain != labels) & (after == labels)).sum() > 0
    assert effect.corrupted == ((plain == labels) & (after != labels)).sum() > 0
    assert effect.value == F1.evaluate(labels, after, 5) - F1.evaluate(labels, plain, 5)


def test_without_a_policy_views_change_nothing_for_any_metric():
    labels, views = with_views()
    for metric in ("macro_f1", "log_loss"):
        policy = replace(SETTINGS.policy, method="identity")
        settings = replace(BAGGED, metric=metric, policy=policy, blend=replace(BLEND, calibrations=("temperature",)))
        effect = fit_and_score_chain(OofRows(views, labels, folds_of(400)), settings, HONEST).view_effects["m0"]
        assert (effect.value, effect.changed) == (0, 0)


@pytest.mark.parametrize("mixing", ["geometric", "rank"])
def test_other_means_of_views_are_cross_fitted_like_the_arithmetic_one(mixing):
    labels, views = with_views()
    folds = folds_of(400)
    settings = replace(
        BAGGED,
        policy=replace(SETTINGS.policy, mixing=mixing, objective="metric"),
        blend=replace(BAGGED.blend, mixing="rank" if mixing == "rank" else "mean", calibrations=("temperature",)),
    )
    crossed = cross_fit(views, labels, folds, settings, HONEST)
    held_out_rows, ids = folds == 2, views["m0"].ids
    others = ~held_out_rows
    chain = fit_chain(align(views, ids[others]), labels[others], folds[others], settings, HONEST)
    assert chain.view_mixing == mixing and (chain.temperatures["m0"] == 1) == (mixing == "rank")
    assert np.allclose(crossed.probs[held_out_rows], apply_chain(chain, align(views, ids[held_out_rows]))[0], atol=1e-6)


def test_a_measured_spread_over_seeds_widens_the_gain_over_a_single_member():
    labels, probs = draw([1.5, 1.5], rows=500)
    views, folds = as_members(probs), folds_of(500)
    plain = fit_and_score_chain(OofRows(views, labels, folds), SETTINGS, HONEST)
    judged = fit_and_score_chain(OofRows(views, labels, folds), SETTINGS, HONEST, spreads={"m0": 0.01, "m1": 0.01})
    assert plain.over_best.seeds == 0 and judged.over_best.seeds == pytest.approx(0.01 / np.sqrt(2), rel=0.05)
    assert judged.over_best.error == plain.over_best.error and judged.chain.digest() == plain.chain.digest()


def test_thresholds_are_a_candidate_only_for_ordered_classes():
    labels, probs = draw([1.0, 1.5], rows=200)
    rules = replace(DECISION, rules=("argmax", "prior", "thresholds"))
    tried = {}
    for name in ("quadratic_kappa", "macro_f1", "log_loss"):
        settings = replace(SETTINGS, metric=name, decision=rules)
        nested = NestedCrossFit(OofRows(as_members(probs), labels, folds_of(200)), settings, HONEST)
        tried[name] = {rule for _, _, rule in nested.candidate_keys}
    assert tried["quadratic_kappa"] == {"argmax", "prior", "thresholds"}
    assert tried["macro_f1"] == {"argmax", "prior"} and tried["log_loss"] == {"argmax"}
    only_thresholds = replace(SETTINGS, decision=replace(rules, rules=("thresholds",)))
    with pytest.raises(UserError, match="expected argmax for macro_f1"):
        fit_chain(as_members(probs), labels, folds_of(200), only_thresholds, HONEST)


@pytest.mark.parametrize(("noise", "method"), [([1.5] * 4, "equal"), ([0.5, 6.0, 6.0, 6.0, 6.0], "bagged")])
def test_near_equal_members_are_blended_equally_and_another_seed_selects_the_same_candidate(noise, method):
    labels, probs = draw(noise, rows=600)
    views, folds = as_members(probs), folds_of(600)
    of_seeds = [replace(SETTINGS, blend=replace(BLEND, seed=seed, bags=8)) for seed in range(3)]
    result = [fit_chain(views, labels, folds, settings, HONEST) for settings in of_seeds]
    assert {chain.blend.method for chain in result} == {method}
    assert len({chain.decision.rule for chain in result}) == 1
    output = [apply_chain(chain, views)[1] for chain in result]
    assert all((output[0] != other).mean() < 0.01 for other in output[1:])


def with_leaking_folds(folds, tuned, labels, probs):
    """Predictions that are correct on all rows of the tuned folds: an exaggerated effect of tuning."""
    is_tuned = np.isin(folds, tuned)
    probs = probs.copy()
    probs[:, is_tuned] = 0.9 * np.eye(probs.shape[2], dtype=np.float32)[labels[is_tuned]] + 0.1 * probs[:, is_tuned]
    return probs


def test_no_score_is_of_rows_that_chose_hyperparameters():
    labels, probs = draw([2.0, 2.5], rows=500)
    folds = folds_of(500)
    views = as_members(with_leaking_folds(folds, [0], labels, probs))
    result = fit_and_score_chain(OofRows(views, labels, folds, tuned_folds=(0,)), SETTINGS, HONEST)
    others = folds != 0
    assert np.array_equal(result.scored, others) and not result.is_optimistic
    predicted = result.cross_fitted.decided
    assert len(predicted) == 500  # every row has its output: only scores leave rows out
    assert result.honest.value == F1.evaluate(labels[others], predicted[others], 5)
    assert result.chosen_on == F1.evaluate(labels[others], apply_chain(result.chain, views)[1][others], 5)
    equal = np.mean([views[name].view("identity") for name in views], axis=0).argmax(1)
    assert result.equal.value == F1.evaluate(labels[others], equal[others], 5)
    assert result.over_equal.value == pytest.approx(result.honest.value - result.equal.value)
    for difference in (result.over_equal, result.over_best, *result.view_effects.values()):
        assert difference.changed <= others.sum()
    every = fit_and_score_chain(OofRows(views, labels, folds), SETTINGS, HONEST)
    assert every.honest.value > result.honest.value + 0.05 and every.equal.value > result.equal.value + 0.05


def test_if_every_fold_chose_hyperparameters_all_rows_are_scored_as_optimistic():
    labels, probs = draw([2.0, 2.5], rows=300)
    folds = folds_of(300, 3)
    result = fit_and_score_chain(OofRows(as_members(probs), labels, folds, tuned_folds=(0, 1, 2)), SETTINGS, HONEST)
    plain = fit_and_score_chain(OofRows(as_members(probs), labels, folds), SETTINGS, HONEST)
    assert result.is_optimistic and result.scored.all() and result.honest == plain.honest


def test_many_folds_are_merged_into_blocks_and_no_row_is_scored_by_a_chain_that_saw_its_fold():
    labels, probs = draw([1.0, 1.5, 2.0], rows=300)
    views, folds, progress = as_members(probs), folds_of(300, 30), []
    settings = replace(HONEST, blocks=3)
    rows = OofRows(views, labels, folds)
    result = fit_and_score_chain(rows, SETTINGS, settings, progress=lambda *at: progress.append(at))
    assert result.blocks == 3 and progress[0] == (1, 7) and progress[-1] == (7, 7)  # not 1 + 30 + 435
    changed_labels = np.where(folds == 4, (labels + 1) % 5, labels)
    again = cross_fit(views, changed_labels, folds, SETTINGS, settings)
    assert np.array_equal(again.decided[folds == 4], result.cross_fitted.decided[folds == 4])
    assert np.array_equal(again.probs[folds == 4], result.cross_fitted.probs[folds == 4])
    assert not np.array_equal(again.probs, result.cross_fitted.probs)
    assert {int(b) for b in np.unique(blocks_of(folds, 3))} == {0, 1, 2}
    few = blocks_of(np.array([0, 2, 5, 2]), 10)
    assert few.tolist() == [0, 1, 2, 1]  # no more blocks than folds


def test_temperatures_are_selected_only_if_they_gain():
    both = replace(SETTINGS, blend=replace(BLEND, calibrations=("none", "temperature")))
    both = replace(both, decision=replace(DECISION, rules=("argmax",)))
    chosen = []
    for seed in range(4):
        labels, probs = draw([1.5, 1.5, 1.5], rows=400, seed=seed)
        chain = fit_chain(as_members(probs), labels, folds_of(400), both, HONEST)
        chosen.append((chain.calibration, set(chain.temperatures.values()) == {1.0}))
    assert chosen.count(("none", True)) >= 3
    # One member is bad and far too sure: as it is, it outvotes the two good ones.
    labels, probs = draw([0.5, 0.5, 4.0], rows=600)
    sharp = probs.copy()
    for m, power in enumerate((0.15, 0.15, 8.0)):
        sharp[m] = probs[m] ** power / (probs[m] ** power).sum(1, keepdims=True)
    equal = replace(both, blend=replace(both.blend, methods=("equal",)))
    chain = fit_chain(as_members(sharp), labels, folds_of(600), equal, HONEST)
    assert chain.calibration == "temperature" and chain.temperatures["m2"] > 2 > 1 > chain.temperatures["m0"]


def test_the_best_member_is_a_candidate_where_the_equal_blend_is_worse_than_it():
    labels, probs = draw([0.3, 5.0, 5.0], rows=600)
    settings = replace(SETTINGS, blend=replace(BLEND, methods=("equal", "best")))
    chain = fit_chain(as_members(probs), labels, folds_of(600), settings, HONEST)
    assert chain.blend.method == "best" and chain.blend.weights["m0"] == 1
