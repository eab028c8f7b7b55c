from dataclasses import replace

import numpy as np
import pytest

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.chain import Chain, align, apply_chain
from competition.ensemble.honest import HonestResult, fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested import NestedCrossFit, OofRows, blocks_of, select_candidate
from competition.ensemble.predictions import ViewPredictions, mix_views
from competition.ensemble.tables import blend_table
from competition.ensemble.tta_policy import ViewCache, fit_policy
from competition.files.manifest import write_json

from .simulated import BLEND, DECISION, HONEST, SETTINGS, cross_fit, draw, fit_chain, oof_rows, rows_of

F1 = METRICS["macro_f1"]
BAGGED = replace(SETTINGS, blend=replace(BLEND, methods=("bagged",)), decision=replace(DECISION, rules=("argmax",)))
NAMES = [(method, rule) for rule in ("argmax", "prior") for method in ("equal", "greedy")]


def scored(rows: OofRows, settings=SETTINGS, honest=HONEST, **options) -> HonestResult:
    return fit_and_score_chain(rows, settings, honest, **options)


def selected(rows: OofRows, is_selected: np.ndarray) -> OofRows:
    """Some of the rows.  is_selected: (N,) bool."""
    ids = next(iter(rows.members.values())).ids[is_selected]
    return OofRows(align(rows.members, ids), rows.labels[is_selected], rows.folds[is_selected])


def with_views(*noises, rows=400, seed=0, names=("identity", "flip_lr", "rot180")) -> OofRows:
    """A member for each list of noise, one view for each number in it."""
    labels, probs = draw([noise for member in noises for noise in member], rows, seed=seed)
    ids, count = np.array([f"i{n:05}" for n in range(rows)]), len(names)
    tables = [np.stack(list(probs[n * count : (n + 1) * count]), 1).astype(np.float16) for n in range(len(noises))]
    members = {f"m{n}": ViewPredictions(ids, names, table) for n, table in enumerate(tables)}
    return OofRows(members, labels, np.arange(rows) % 5)


FITTED = replace(SETTINGS, blend=replace(BLEND, methods=("greedy",)), decision=replace(DECISION, rules=("prior",)))


@pytest.mark.parametrize(("folds", "blocks", "settings"), [(5, 10, SETTINGS), (5, 10, FITTED), (30, 3, FITTED)])
def test_predictions_of_a_fold_do_not_depend_on_its_labels(folds, blocks, settings):
    rows, honest = with_views([1.0, 1.5, 2.0], [1.0, 1.5, 2.0], rows=300), replace(HONEST, blocks=blocks)
    rows = replace(rows, folds=np.arange(300) % folds)
    in_fold = rows.folds == 3
    others = replace(rows, labels=np.where(in_fold, (rows.labels + 1) % 5, rows.labels))
    crossed, again = (cross_fit(each, settings, honest) for each in (rows, others))
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


def test_many_folds_are_merged_into_blocks():
    progress = []
    result = scored(
        oof_rows([1.0, 1.5, 2.0], 300, 30), honest=replace(HONEST, blocks=3), progress=lambda *at: progress.append(at)
    )
    assert result.blocks == 3 and progress[0] == (1, 7) and progress[-1] == (7, 7)  # not 1 + 30 + 435
    assert {int(block) for block in np.unique(blocks_of(np.arange(300) % 30, 3))} == {0, 1, 2}
    assert blocks_of(np.array([0, 2, 5, 2]), 10).tolist() == [0, 1, 2, 1]  # no more blocks than folds


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
    """The chunks in which probabilities are computed change nothing."""
    # With views: one that helps, and one that harms.
    rows, settings = with_views([1.5, 1.5, 8.0]) if views else oof_rows([1.0, 1.5, 2.5], 300, 3), BAGGED
    policy = replace(SETTINGS.policy, objective="metric")
    settings = replace(BAGGED, metric=metric, policy=policy)
    crossed = cross_fit(rows, settings)
    for fold in range(3):
        chain = fit_chain(selected(rows, rows.folds != fold), settings)
        monkeypatch.setattr("competition.ensemble.predictions.CHUNK_ENTRIES", 200)
        probs, labels = apply_chain(chain, selected(rows, rows.folds == fold).members)
        assert np.allclose(crossed.probs[rows.folds == fold], probs, atol=1e-6)
        assert np.array_equal(crossed.decided[rows.folds == fold], labels)


def a_quarter_wrong():
    """Labels of four classes, and predictions of which the first 100 of 400 are wrong."""
    labels = np.arange(400) % 4
    return labels, np.where(np.arange(400) < 100, (labels + 1) % 4, labels)


def changed(labels, predicted, right=slice(0), wrong=slice(0)):
    """The predictions with some rows made right and some made wrong."""
    predicted = predicted.copy()
    predicted[right], predicted[wrong] = labels[right], (labels[wrong] + 1) % 4
    return predicted


def test_the_simplest_candidate_is_replaced_only_by_a_significant_gain():
    labels, wrong = a_quarter_wrong()
    hair = changed(labels, wrong, slice(4), slice(100, 103))  # one row more: noise
    better, worse = changed(labels, wrong, slice(60)), changed(labels, wrong, wrong=slice(130))
    best = changed(labels, better, slice(60, 70))
    luck = changed(labels, better, slice(60, 64), slice(100, 103))  # one row more than better
    assert F1.evaluate(labels, hair, 4) > F1.evaluate(labels, wrong, 4)
    for outputs, name in (
        ((wrong, wrong, wrong, wrong), ("equal", "argmax")),
        ((wrong, better, wrong, better), ("greedy", "argmax")),
        ((wrong, wrong, better, wrong), ("equal", "prior")),
        ((wrong, worse, wrong, worse), ("equal", "argmax")),
        ((wrong, hair, wrong, hair), ("equal", "argmax")),
        ((wrong, better, wrong, best), ("greedy", "prior")),
        ((wrong, best, wrong, better), ("greedy", "argmax")),
        ((wrong, luck, wrong, better), ("greedy", "prior")),
    ):
        assert select_candidate(dict(zip(NAMES, outputs, strict=True)), labels, F1, 4, HONEST) == name


def test_one_standard_error_does_not_replace_the_simplest_candidate():
    labels, wrong = a_quarter_wrong()
    lucky = changed(labels, wrong, slice(22), slice(200, 212))  # 22 rows right, 12 spoilt
    gain = paired(labels, wrong, lucky, Evaluation(F1, 4, 300, seed=0))
    assert gain.is_better and not gain.is_significant
    simplest, other = ("equal", "argmax"), ("bagged", "argmax")
    assert select_candidate({simplest: wrong, other: lucky}, labels, F1, 4, HONEST) == simplest


@pytest.mark.parametrize(
    ("method", "rule", "metric"), [("stacking", "prior", "macro_f1"), ("bagged", "thresholds", "quadratic_kappa")]
)
def test_a_loaded_chain_gives_identical_outputs(tmp_path, method, rule, metric):
    blend, decision = replace(BLEND, methods=(method,)), replace(DECISION, rules=(rule,))
    settings = replace(SETTINGS, metric=metric, blend=blend, decision=decision)
    rows = oof_rows([1.0, 1.5, 2.5], 300)
    chain = fit_chain(rows, settings)
    write_json(tmp_path / "chain.json", chain)
    loaded_chain = Chain.load(tmp_path / "chain.json")
    assert digest_of(loaded_chain) == digest_of(chain)
    for output, loaded in zip(apply_chain(chain, rows.members), apply_chain(loaded_chain, rows.members), strict=True):
        assert np.array_equal(output, loaded)
    (tmp_path / "chain.json").write_text("{}")
    with pytest.raises(UserError, match="is not a valid chain"):
        Chain.load(tmp_path / "chain.json")


def test_rows_are_joined_by_id_and_members_that_do_not_match_are_an_error_with_their_name():
    rows = oof_rows([1.0, 1.5], 50)
    views, ids = rows.members, rows.members["m0"].ids
    chain = fit_chain(rows, BAGGED)
    assert np.array_equal(apply_chain(chain, align(views, ids[::-1]))[1], apply_chain(chain, views)[1][::-1])
    with pytest.raises(UserError, match="member 'm1' has other ids, or another order"):
        fit_chain(replace(rows, members={**views, "m1": views["m1"].at(ids[::-1])}), BAGGED)
    with pytest.raises(UserError, match="member 'm1': 10 of 50 ids have no prediction"):
        align({**views, "m1": views["m1"].at(ids[:40])}, ids)
    narrow = ViewPredictions(ids, ("identity",), np.full((50, 1, 2), 0.5, np.float16))
    with pytest.raises(UserError, match="different numbers of classes"):
        align({**views, "m1": narrow}, ids)
    with pytest.raises(UserError, match="at least one member, found none"):
        align({}, ids)


def test_two_folds_are_enough_and_one_is_not():
    rows = oof_rows([1.0, 1.5], 200, 2)
    assert 0 < scored(rows).honest.value < 1
    with pytest.raises(UserError, match=r"two folds or more, numbered from 0; found \[0\]"):
        scored(replace(rows, folds=np.zeros(200, int)))


def test_view_effects_are_counted_on_rows_that_the_policy_was_not_fitted_on():
    rows = with_views([1.5, 1.5, 8.0])
    labels, predictions = rows.labels, rows.members["m0"]
    effect = scored(rows, BAGGED).view_effects["m0"]
    plain, after = predictions.view("identity").argmax(1), np.zeros(400, int)
    for fold in range(5):
        training_rows = np.flatnonzero(rows.folds != fold)
        policy = fit_policy(ViewCache(predictions, labels), training_rows, F1, SETTINGS.policy)
        after[rows.folds == fold] = mix_views(predictions, policy).argmax(1)[rows.folds == fold]
    assert effect.corrected == ((plain != labels) & (after == labels)).sum() > 0
    assert effect.corrupted == ((plain == labels) & (after != labels)).sum() > 0
    assert effect.value == F1.evaluate(labels, after, 5) - F1.evaluate(labels, plain, 5)


def test_thresholds_are_a_candidate_only_for_ordered_classes():
    rows, tried = oof_rows([1.0, 1.5], 200), {}
    rules = replace(DECISION, rules=("argmax", "prior", "thresholds"))
    for name in ("quadratic_kappa", "macro_f1", "log_loss"):
        nested = NestedCrossFit(rows, replace(SETTINGS, metric=name, decision=rules), HONEST)
        tried[name] = {rule for _, rule in nested.candidate_keys}
    assert tried["quadratic_kappa"] == {"argmax", "prior", "thresholds"}
    assert tried["macro_f1"] == {"argmax", "prior"} and tried["log_loss"] == {"argmax"}
    with pytest.raises(UserError, match="expected argmax for macro_f1"):
        fit_chain(rows, replace(SETTINGS, decision=replace(rules, rules=("thresholds",))))


def test_no_score_is_of_rows_that_chose_hyperparameters():
    labels, probs = draw([2.0, 2.5], rows=500)
    others = np.arange(500) % 5 != 0
    # Predictions that are correct on all rows of the tuned fold: an exaggerated effect of tuning.
    probs[:, ~others] = 0.9 * np.eye(5, dtype=np.float32)[labels[~others]] + 0.1 * probs[:, ~others]
    rows = rows_of(labels, probs)
    result, every = scored(replace(rows, tuned_folds=(0,))), scored(rows)
    assert np.array_equal(result.scored, others) and not result.is_optimistic
    predicted = result.cross_fitted.decided
    assert len(predicted) == 500  # every row has its output: only scores leave rows out
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
    assert greedy.honest.value == F1.evaluate(data.labels, cross_fit(data, fixed, HONEST).decided, 5)
    assert greedy.chosen_on >= greedy.honest.value
    assert alone.chosen_on == alone.honest.value == F1.evaluate(data.labels, data.members["m0"].view("identity"))
    assert equal.over.keys() == {"best"} and greedy.over.keys() == {"equal", "best"}
    assert np.isclose(greedy.over["equal"].value, greedy.honest.value - equal.honest.value)
    assert best.honest.value <= max(r.honest.value for r in rows[:3])
