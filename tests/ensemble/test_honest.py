"""Nested cross-fitting: every choice is made without the rows that it is scored on, for single labels, label sets and numbers."""

from dataclasses import replace

import numpy as np
import pytest
from builders import params
from sklearn import metrics as reference

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.chain import Chain, apply_chain
from competition.ensemble.compare import diversity
from competition.ensemble.decision import Decision, fit_label_thresholds
from competition.ensemble.honest_score import HonestResult, fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested_cross_fit import NestedCrossFit, OofRows, blocks_of, select_candidate
from competition.ensemble.settings import chain_settings
from competition.ensemble.stored_predictions import ViewPredictions
from competition.ensemble.tables import blend_table
from competition.ensemble.tta_policy import ViewCache, fit_policy, mix_views
from competition.files.manifest import write_json

from .simulated import BLEND, DECISION, HONEST, SETTINGS, draw, oof_rows, rows_of

F1 = METRICS["macro_f1"]
BAGGED = replace(SETTINGS, blend=replace(BLEND, methods=("bagged",)), decision=replace(DECISION, rules=("argmax",)))
NAMES = [(method, rule) for rule in ("argmax", "prior") for method in ("equal", "greedy")]


def scored(rows: OofRows, settings=SETTINGS, honest=HONEST) -> HonestResult:
    return fit_and_score_chain(rows, settings, honest)


def selected(rows: OofRows, is_selected: np.ndarray) -> OofRows:
    """Some of the rows.  is_selected: (N,) bool."""
    ids = next(iter(rows.members.values())).ids[is_selected]
    members = {name: member.at(ids) for name, member in rows.members.items()}
    return OofRows(members, rows.labels[is_selected], rows.folds[is_selected])


def with_views(*noises, rows=400, names=("identity", "flip_lr", "rot180")) -> OofRows:
    """A member for each list of noise, one view for each number in it."""
    labels, probs = draw([noise for member in noises for noise in member], rows)
    ids, tables = np.array([f"i{n:05}" for n in range(rows)]), probs.reshape(len(noises), len(names), rows, -1)
    members = {f"m{n}": ViewPredictions(ids, names, t.swapaxes(0, 1).astype(np.float16)) for n, t in enumerate(tables)}
    return OofRows(members, labels, np.arange(rows) % 5)


FITTED = replace(SETTINGS, blend=replace(BLEND, methods=("greedy",)), decision=replace(DECISION, rules=("prior",)))


@pytest.mark.parametrize(("folds", "blocks", "settings"), [(5, 10, SETTINGS), (5, 10, FITTED), (30, 3, FITTED)])
def test_predictions_of_a_fold_do_not_depend_on_its_labels(folds, blocks, settings):
    rows, honest = with_views([1.0, 1.5, 2.0], [1.0, 1.5, 2.0], rows=300), replace(HONEST, blocks=blocks)
    rows = replace(rows, folds=np.arange(300) % folds)
    assert len(np.unique(blocks_of(rows.folds, blocks))) == min(folds, blocks)  # many folds are merged
    in_fold = rows.folds == 3
    others = replace(rows, labels=np.where(in_fold, (rows.labels + 1) % 5, rows.labels))
    crossed, again = (NestedCrossFit(each, settings, honest).cross_fit() for each in (rows, others))
    assert np.array_equal(again.probs[in_fold], crossed.probs[in_fold])
    assert np.array_equal(again.decided[in_fold], crossed.decided[in_fold])
    assert not np.array_equal(again.probs, crossed.probs)  # the others did learn from them


def test_a_candidate_is_selected_without_the_rows_that_it_predicts():
    labels, probs = draw([1.0, 2.0], rows=500)
    probs[1, 3::5] = np.roll(probs[1, 3::5], 1, axis=-1)  # the second member is wrong in fold 3
    settings = replace(SETTINGS, blend=replace(BLEND, methods=("equal", "best")), decision=BAGGED.decision)
    nested = NestedCrossFit(rows_of(labels, probs), settings, HONEST)
    assert nested.cross_fit().selected[3] == ("equal", "argmax")
    assert nested.select(frozenset()) == ("best", "argmax")  # so the rows of fold 3 would have decided otherwise


def test_the_weight_of_a_member_that_memorised_its_training_rows_depends_on_unseen_rows_only():
    labels, probs = draw([1.2, 1.2], rows=600)
    # Fold models that know their own training rows by heart and guess at random elsewhere.
    in_sample = np.full((600, 5), 0.001, np.float32)
    in_sample[np.arange(600), labels] = 0.996
    out_of_fold = np.random.default_rng(3).dirichlet(np.ones(5) * 0.1, 600).astype(np.float32)
    weights = scored(rows_of(labels, np.stack([*probs, out_of_fold]))).chain.blend.weights
    assert weights["m2"] < 0.5 * min(weights["m0"], weights["m1"])
    # Had its in-sample predictions been used, it would have had all the weight.
    weights = scored(rows_of(labels, np.stack([*probs, in_sample]))).chain.blend.weights
    assert weights["m2"] > max(weights["m0"], weights["m1"])


@pytest.mark.parametrize(("views", "metric"), [(True, "macro_f1"), (False, "mean_column_auc")])
def test_cross_fitting_is_fitting_without_the_fold_and_applying_to_it(views, metric, monkeypatch):
    # With views: one that helps, and one that harms.
    rows = with_views([1.5, 1.5, 8.0]) if views else oof_rows([1.0, 1.5, 2.5], 300, 3)
    settings = replace(BAGGED, metric=METRICS[metric], policy=replace(SETTINGS.policy, objective="metric"))
    crossed = NestedCrossFit(rows, settings, HONEST).cross_fit()
    monkeypatch.setattr("competition.ensemble.stored_predictions.CHUNK_ENTRIES", 200)  # chunks change nothing
    for fold in range(3):
        is_held_out = rows.folds == fold
        chain = NestedCrossFit(selected(rows, ~is_held_out), settings, HONEST).chain()
        probs, labels = apply_chain(chain, selected(rows, is_held_out).members)
        assert np.allclose(crossed.probs[is_held_out], probs, atol=1e-6)
        assert np.array_equal(crossed.decided[is_held_out], labels)


def changed(labels, predicted, right=slice(0), wrong=slice(0)):
    """The predictions with some rows made right and some made wrong."""
    predicted = predicted.copy()
    predicted[right], predicted[wrong] = labels[right], (labels[wrong] + 1) % 4
    return predicted


def test_the_simplest_candidate_is_replaced_only_by_a_significant_gain():
    labels = np.arange(400) % 4
    wrong = changed(labels, labels, wrong=slice(100))  # a quarter of the rows
    hair = changed(labels, wrong, slice(4), slice(100, 103))  # one row more: noise
    better, worse = changed(labels, wrong, slice(60)), changed(labels, wrong, wrong=slice(130))
    best = changed(labels, better, slice(60, 70))
    luck = changed(labels, better, slice(60, 64), slice(100, 103))  # one row more than better
    lucky = changed(labels, wrong, slice(22), slice(200, 212))  # 12 rows spoilt: one standard error is not enough
    assert F1.evaluate(labels, hair, 4) > F1.evaluate(labels, wrong, 4)
    gain = paired(labels, wrong, lucky, Evaluation(F1, 4, 300, seed=0))
    assert gain.is_better and not gain.is_significant
    for outputs, name in (
        ((wrong, wrong, wrong, wrong), ("equal", "argmax")),
        ((wrong, better, wrong, better), ("greedy", "argmax")),
        ((wrong, wrong, better, wrong), ("equal", "prior")),
        ((wrong, worse, wrong, worse), ("equal", "argmax")),
        ((wrong, hair, wrong, hair), ("equal", "argmax")),
        ((wrong, lucky, wrong, lucky), ("equal", "argmax")),
        ((wrong, better, wrong, best), ("greedy", "prior")),
        ((wrong, best, wrong, better), ("greedy", "argmax")),
        ((wrong, luck, wrong, better), ("greedy", "prior")),
    ):
        assert select_candidate(dict(zip(NAMES, outputs, strict=True)), labels, F1, 4, HONEST) == name


def test_rows_are_joined_by_id_and_members_that_do_not_match_are_an_error_with_their_name():
    rows = oof_rows([1.0, 1.5], 50)
    views, ids = rows.members, rows.members["m0"].ids
    chain = NestedCrossFit(rows, BAGGED, HONEST).chain()
    backwards = {name: member.at(ids[::-1]) for name, member in views.items()}
    assert np.array_equal(apply_chain(chain, backwards)[1], apply_chain(chain, views)[1][::-1])
    turned = {**views, "m1": backwards["m1"]}
    for members, message in ((turned, "'m1' has other ids, or another order"), ({}, "at least one member, found none")):
        with pytest.raises(UserError, match=message):
            NestedCrossFit(replace(rows, members=members), BAGGED, HONEST)
    with pytest.raises(UserError, match=r"two folds or more, numbered from 0; found \[0\]"):
        scored(replace(rows, folds=np.zeros(50, int)))


def test_view_effects_are_counted_on_rows_that_the_policy_was_not_fitted_on():
    rows = with_views([1.5, 1.5, 8.0])
    labels, predictions = rows.labels, rows.members["m0"]
    effect = scored(rows, BAGGED).view_effects["m0"]
    plain, after = predictions.view("identity").argmax(1), np.zeros(400, int)
    for fold in range(5):
        held_out = rows.folds == fold
        policy = fit_policy(ViewCache(predictions, labels), np.flatnonzero(~held_out), F1, SETTINGS.policy)
        after[held_out] = mix_views(predictions, policy).argmax(1)[held_out]
    assert effect.corrected == ((plain != labels) & (after == labels)).sum() > 0
    assert effect.corrupted == ((plain == labels) & (after != labels)).sum() > 0
    assert effect.value == F1.evaluate(labels, after, 5) - F1.evaluate(labels, plain, 5)


def test_the_gain_of_the_decision_rule_is_told_apart_from_those_of_the_weights():
    """One member favours the common class, which prior correction mends, and the other knows less but scores more without it."""
    rng = np.random.default_rng(0)
    labels = rng.choice(4, 1200, p=[0.7, 0.15, 0.1, 0.05])
    strengths, shares = np.array([1.5, 1.0])[:, None, None], np.array([2.0, 0.5])[:, None, None]
    logits = strengths * np.eye(4)[labels] + rng.normal(0, 1, (2, 1200, 4)) + shares * np.log([0.7, 0.15, 0.1, 0.05])
    good, other = probs = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    rows = rows_of(labels, probs)
    settings = replace(SETTINGS, blend=replace(BLEND, methods=("best",)), decision=replace(DECISION, rules=("prior",)))
    result = scored(rows, settings)
    assert result.over_default_rule.value > 0.03 and result.over_default_rule.is_significant
    assert result.default_rule.value + result.over_default_rule.value == pytest.approx(result.honest.value)
    assert [*result.best_members] == ["m0"] and F1.evaluate(labels, other) > F1.evaluate(labels, good)
    assert result.over_best.value == 0  # the blend is that member
    everywhere = diversity(result.chain, rows.members, labels, np.arange(1200), F1)
    assert everywhere.score[0] == F1.evaluate(labels, good.argmax(1), 4)  # without the rule of the blend


def test_under_an_auc_the_best_member_is_the_same_in_all_folds():
    """Rows of a member whose log odds are three times as large are not ranked against those of another."""
    labels, probs = draw([2.0, 2.0], rows=150)
    probs[1] = probs[1] ** 3 / (probs[1] ** 3).sum(1, keepdims=True)
    result, auc = (
        scored(rows_of(labels, probs), replace(SETTINGS, metric=METRICS["mean_column_auc"])),
        METRICS["mean_column_auc"],
    )
    assert result.best.value == pytest.approx(max(auc.evaluate(labels, member, 5) for member in probs), abs=1e-4)


def test_no_score_is_of_rows_that_chose_hyperparameters():
    labels, probs = draw([2.0, 2.5], rows=300)
    others = np.arange(300) % 5 != 0
    # Predictions that are correct on all rows of the tuned fold: an exaggerated effect of tuning.
    probs[:, ~others] = 0.9 * np.eye(5, dtype=np.float32)[labels[~others]] + 0.1 * probs[:, ~others]
    rows = rows_of(labels, probs)
    result, every = scored(replace(rows, tuned_folds=(0,))), scored(rows)
    assert np.array_equal(result.scored, others) and not result.is_optimistic
    predicted = result.cross_fitted.decided
    assert len(predicted) == 300  # every row has its output: only scores leave rows out
    assert result.honest.value == F1.evaluate(labels[others], predicted[others], 5)
    assert result.chosen_on == F1.evaluate(labels[others], apply_chain(result.chain, rows.members)[1][others], 5)
    equal = np.mean([member.view("identity") for member in rows.members.values()], axis=0).argmax(1)
    assert result.equal.value == F1.evaluate(labels[others], equal[others], 5)
    assert result.over_equal.value == pytest.approx(result.honest.value - result.equal.value)
    for difference in (result.over_equal, result.over_best, *result.view_effects.values()):
        assert difference.changed <= others.sum()
    assert every.honest.value > result.honest.value + 0.05 and every.equal.value > result.equal.value + 0.05
    all_tuned = scored(replace(rows, tuned_folds=(0, 1, 2, 3, 4)))  # all rows are scored, as optimistic
    assert all_tuned.is_optimistic and all_tuned.scored.all() and all_tuned.honest == every.honest


def test_the_table_of_blends_has_every_member_and_method_scored_on_unseen_rows():
    data = oof_rows([1.0, 1.5, 2.5], 300)
    rows = blend_table(data, SETTINGS, HONEST)
    assert [r.name for r in rows] == ["m0", "m1", "m2", "equal", "best", "bagged", "greedy", "stacking"]
    alone, equal, best, greedy = (next(r for r in rows if r.name == n) for n in ("m0", "equal", "best", "greedy"))
    fixed = replace(FITTED, decision=BAGGED.decision)
    assert greedy.honest.value == F1.evaluate(data.labels, NestedCrossFit(data, fixed, HONEST).cross_fit().decided, 5)
    assert greedy.chosen_on >= greedy.honest.value
    assert alone.chosen_on == alone.honest.value == F1.evaluate(data.labels, data.members["m0"].view("identity"))
    assert equal.over.keys() == {"best"} and greedy.over.keys() == {"equal", "best"}
    assert np.isclose(greedy.over["equal"].value, greedy.honest.value - equal.honest.value)
    assert best.honest.value <= max(r.honest.value for r in rows[:3])


FEW_RESAMPLES = replace(HONEST, resamples=100)
MACRO = METRICS["multilabel_macro_f1"]


def test_the_thresholds_of_macro_f1_are_the_best_ones_of_each_class():
    rng = np.random.default_rng(3)
    targets = rng.random((300, 3)) < [0.5, 0.2, 0.05]
    probs = np.clip(rng.normal(0.2 + 0.25 * targets, 0.12), 0, 1)
    thresholds = fit_label_thresholds(probs, targets, MACRO, passes=1, shrink_rows=0)
    for c in range(3):
        decided, truth = probs[:, c] >= np.unique(probs[:, c])[:, None], targets[:, c]
        best = (2 * (decided & truth).sum(1) / (decided.sum(1) + truth.sum())).max()
        assert reference.f1_score(targets[:, c], probs[:, c] >= thresholds[c]) == pytest.approx(best)
    shrunk = fit_label_thresholds(probs, targets, MACRO, passes=1, shrink_rows=1e9)
    assert np.ptp(shrunk) < 1e-3  # the common threshold


def test_thresholds_without_positives_and_rows_without_a_label():
    targets, probs = np.array([[1, 0], [0, 0], [1, 0]], bool), np.array([[0.4, 0.1], [0.2, 0.3], [0.5, 0.2]])
    thresholds = fit_label_thresholds(probs, targets, MACRO, 1, 0)
    assert 0.2 < thresholds[0] < 0.4 and 0.3 < thresholds[1] < 0.401  # the common threshold
    probs, thresholds = np.array([[0.1, 0.4], [0.9, 0.1]]), np.array([0.2, 0.6])
    decision = Decision("thresholds", thresholds=tuple(thresholds), independent=True)
    assert decision.labels(probs).tolist() == [[False, False], [True, False]]
    assert replace(decision, at_least_one=True).labels(probs).tolist() == [[True, False], [True, False]]


def rows_with(target: str) -> OofRows:
    """Of single labels three members; else a good and a poor one, of which each view sees the targets through its own noise."""
    if target == "single":
        return oof_rows([1.0, 1.5, 2.5], 300)
    rng, folds, views = np.random.default_rng(5), np.arange(200) % 4, ("identity", "flip_lr")
    targets = rng.random((200, 4)) < [0.5, 0.3, 0.2, 0.1] if target == "multi" else rng.normal(1000, 20, (200, 1))
    members = {}
    for name, scale in {"good": 0.5, "poor": 1.0}.items():
        seen = targets[:, None] + rng.normal(0, scale if target == "multi" else 10.0, (200, 2, targets.shape[1]))
        probs = 1 / (1 + np.exp(-4 * (seen - 0.6))) if target == "multi" else seen
        members[name] = ViewPredictions(np.arange(200).astype(str), views, probs.astype(np.float32), target)
    return OofRows(members, targets if target == "multi" else targets[:, 0], folds)


@pytest.mark.parametrize(
    ("metric", "sets"),
    [
        ("macro_f1", "blend.methods=[stacking] decision.rules=[prior]"),
        ("quadratic_kappa", "blend.methods=[bagged] decision.rules=[thresholds]"),
        *((name, "") for name in ("multilabel_macro_f1", "samples_f1", "mean_average_precision", "rmse")),
    ],
)
def test_a_loaded_chain_gives_identical_outputs_and_the_score_that_it_was_chosen_on(metric, sets, tmp_path):
    metric = METRICS[metric]
    settings = chain_settings(params(f"blend.bags=2 blend.rounds=4 {sets}"), metric)
    rows = rows_with(metric.target)
    result = scored(rows, settings, FEW_RESAMPLES)
    write_json(tmp_path / "chain.json", result.chain)
    loaded_chain = Chain.load(tmp_path / "chain.json")
    assert digest_of(loaded_chain) == digest_of(result.chain)
    probs, decided = apply_chain(loaded_chain, rows.members)
    for output, loaded in zip(apply_chain(result.chain, rows.members), (probs, decided), strict=True):
        assert np.array_equal(output, loaded)
    score = metric.evaluate(rows.labels, metric.output_of(probs, decided), probs.shape[1])
    assert score == pytest.approx(result.chosen_on) and result.honest.error > 0
    if metric.target == "multi":
        assert 0.5 < result.honest.value < 1 and result.chain.blend.mixing == "log_odds" and decided.dtype == bool
    if metric.target == "regression":  # of two members under two views: half the variance or less
        alone = rows.members["good"].view("identity")
        assert metric.display(result.honest.value) < 0.75 * metric.display(metric.evaluate(rows.labels, alone))
    (tmp_path / "chain.json").write_text("{}")
    with pytest.raises(UserError, match="is not a valid chain"):
        Chain.load(tmp_path / "chain.json")


@pytest.mark.parametrize("name", ["multilabel_mean_column_auc", "mean_average_precision"])
def test_a_member_alone_keeps_its_score_where_only_the_order_of_rows_counts(name):
    rows, settings = rows_with("multi"), chain_settings(params("policy.method=identity"), METRICS[name])
    poor = rows.members["poor"]
    result = scored(replace(rows, members={"poor": poor}), settings, FEW_RESAMPLES)
    expected = METRICS[name].evaluate(rows.labels, poor.view("identity"))
    assert result.honest.value == pytest.approx(expected, abs=1e-4)
