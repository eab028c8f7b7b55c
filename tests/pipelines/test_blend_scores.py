"""What `make blend` says of its rows, without a trained world."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from world import ROOT

from competition.artifacts.ensemble_inputs import EnsembleInputs
from competition.config.params_file import load_params
from competition.ensemble.bootstrap import score_with_error
from competition.ensemble.honest import HonestResult, HonestSettings, honest_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.predictions import ViewPredictions
from competition.ensemble.settings import chain_settings
from pipelines.blend import plain_score, row_notes, scores_of

F1 = METRICS["macro_f1"]
LABELS = np.arange(60) % 3
IDS = np.array([f"i{n:02}" for n in range(60)])


def member(names: tuple[str, ...], right: tuple[float, ...]) -> ViewPredictions:
    """Views that are right for the first share of the rows."""
    probs = np.full((60, len(names), 3), 0.1, np.float16)
    for view, share in enumerate(right):
        given = np.where(np.arange(60) < 60 * share, LABELS, (LABELS + 1) % 3)
        probs[np.arange(60), view, given] = 0.8
    return ViewPredictions(IDS, names, probs)


def test_a_member_is_scored_by_its_plain_view_wherever_that_stands() -> None:
    every = np.ones(60, bool)
    shifted_first = member(("shift_up", "identity"), (0.2, 0.9))
    score = plain_score(F1, shifted_first, LABELS, every, (20, 0))
    assert score == score_with_error(LABELS, shifted_first.view("identity").argmax(1), F1, 3, 20, 0)
    elsewhere = member(("given", "flipped"), (0.9, 0.2))  # no view is named identity: the first is the plain one
    assert plain_score(F1, elsewhere, LABELS, every, (20, 0)).value == score.value


def test_a_member_is_scored_on_rows_that_chose_no_hyperparameters() -> None:
    late = np.arange(60) >= 30
    score = plain_score(F1, member(("identity",), (0.5,)), LABELS, late, (20, 0))
    assert score.value == 0  # right on the first half alone


def rows_and_scores(folds: int, tuned: tuple[int, ...], blocks: int) -> tuple[HonestResult, EnsembleInputs]:
    params = load_params(ROOT / "params.yaml")
    settings = chain_settings(params, "macro_f1")
    settings = replace(settings, blend=replace(settings.blend, rounds=2, bags=2, methods=("equal",)))
    of_row, oof = np.arange(60) // 3 % folds, {"m": member(("identity",), (0.8,))}
    made = honest_chain(oof, LABELS, of_row, settings, HonestSettings(20, 0, blocks), tuned_folds=tuned)
    rows = EnsembleInputs(IDS, LABELS, of_row, oof, IDS[:20], {}, tuple(range(folds)), tuned, ())
    return made, rows


def test_what_is_scored_is_said_where_it_is_not_every_row_by_its_fold() -> None:
    assert row_notes(*rows_and_scores(4, (), 10)) == []
    (note,) = row_notes(*rows_and_scores(4, (1,), 10))
    assert "folds [1]" in note and "the other 45 rows" in note
    (note,) = row_notes(*rows_and_scores(4, (0, 1, 2, 3), 10))
    assert "OPTIMISTIC" in note and "no row is left that took no part in any choice" in note
    (note,) = row_notes(*rows_and_scores(10, (), 3))
    assert "10 folds in 3 blocks (honest.blocks)" in note


def test_after_tuning_on_one_fold_of_five_every_stored_score_is_of_the_other_rows() -> None:
    params = load_params(ROOT / "params.yaml")
    job = SimpleNamespace(params=replace(params, honest=replace(params.honest, resamples=20)))
    # The member is right on the first 48 of 60 rows; the folds are cut so that fold 0 holds right rows alone.
    made, rows = rows_and_scores(5, (0,), 10)
    others = rows.folds != 0
    scores = scores_of(job, made, F1, rows)  # type: ignore[arg-type]
    given = member(("identity",), (0.8,)).view("identity").argmax(1)
    expected = F1.evaluate(LABELS[others], given[others], 3)
    assert expected != F1.evaluate(LABELS, given, 3)
    assert scores["honest"] == scores["chosen_on"] == scores["equal"]["score"] == scores["members"]["m"]["score"]
    assert (scores["honest"], scores["honest_rows"], scores["tuned_folds"]) == (expected, 48, (0,))
    assert scores["optimistic"] is False
    assert scores_of(job, *rows_and_scores(2, (0, 1), 10)[:1], F1, rows)["optimistic"] is True  # type: ignore[arg-type]
