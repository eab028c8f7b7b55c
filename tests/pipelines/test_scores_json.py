"""Scores and notes of `make blend`, without trained members."""

from dataclasses import replace

import numpy as np
import pytest
from builders import ROOT

from competition.config.digests import to_plain
from competition.config.params import Honest
from competition.config.params_file import load_params, parse_overrides
from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.ensemble.external_check import OTHER_IDS, is_doubted
from competition.ensemble.honest import HonestResult, fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested import OofRows
from competition.ensemble.predictions import ViewPredictions
from competition.ensemble.settings import chain_settings
from competition.ensemble.significance import Difference
from competition.report.blend_tables import blend_section
from competition.report.overview import score_figures
from competition.report.scores_json import member_score, scores_of
from competition.report.terminal import summary_rows
from competition.workspace.ensemble_inputs import EnsembleInputs
from pipelines.main_job.blend import caution_lines, conclusion

F1 = METRICS["macro_f1"]
LABELS = np.arange(60) % 3
IDS = np.array([f"i{n:02}" for n in range(60)])


def member(names: tuple[str, ...], right: tuple[float, ...]) -> ViewPredictions:
    """Views that are correct for the first `right` (a share) of the rows."""
    probs = np.full((60, len(names), 3), 0.1, np.float16)
    for view, share in enumerate(right):
        predicted = np.where(np.arange(60) < 60 * share, LABELS, (LABELS + 1) % 3)
        probs[np.arange(60), view, predicted] = 0.8
    return ViewPredictions(IDS, names, probs)


def test_a_member_is_scored_by_its_identity_view_at_any_position() -> None:
    all_rows = np.ones(60, bool)
    shifted_first = member(("shift_up", "identity"), (0.2, 0.9))
    score = member_score(Evaluation(F1, 3, 20, 0), shifted_first, LABELS, all_rows)
    assert score == score_with_error(LABELS, shifted_first.view("identity").argmax(1), Evaluation(F1, 3, 20, 0))
    external_member = member(("given", "flipped"), (0.9, 0.2))  # no view is named identity: the first one is taken
    assert member_score(Evaluation(F1, 3, 20, 0), external_member, LABELS, all_rows).value == score.value


def rows_and_scores(folds: int, tuned: tuple[int, ...], blocks: int) -> tuple[HonestResult, EnsembleInputs]:
    params = load_params(ROOT / "params.yaml")
    settings = chain_settings(params, "macro_f1")
    settings = replace(settings, blend=replace(settings.blend, rounds=2, bags=2, methods=("equal",)))
    fold_of_row, oof = np.arange(60) // 3 % folds, {"m": member(("identity",), (0.8,))}
    result = fit_and_score_chain(OofRows(oof, LABELS, fold_of_row, tuned_folds=tuned), settings, Honest(20, 0, blocks))
    rows = EnsembleInputs(IDS, LABELS, fold_of_row, oof, IDS[:20], {}, tuple(range(folds)), tuned, ())
    return result, rows


@pytest.mark.parametrize(
    ("tuned", "words"),
    [((), "on 60 rows; "), ((1,), "on 45 of 60 rows (the others chose hyperparameters)"), ((0, 1, 2, 3), "OPTIMISTIC")],
)
def test_the_conclusion_names_the_rows_it_rests_on(tuned: tuple[int, ...], words: str) -> None:
    params = load_params(ROOT / "params.yaml", parse_overrides("honest.resamples=20"))
    result, rows = rows_and_scores(4, tuned, 10)
    views = {"m": {"effect": result.view_effects["m"], "left_out": {}}}
    scores = to_plain({**scores_of(params, result, F1, rows), "views": views}) | {"leaderboard_band": [0.8, 0.9]}
    assert words in conclusion(scores) and "NOT HONEST" not in conclusion(scores)
    leaked = scores | {"notes": ["x: not out-of-fold? its confidence is 0.99"]}
    assert "NOT HONEST if the models of x were trained on these rows" in conclusion(leaked)
    shuffled = scores | {"notes": [f"x: its test predictions {OTHER_IDS}"]}
    assert "NO EXPECTATION for test rows: the test predictions of x seem to have other ids" in conclusion(shuffled)
    others = scores | {"notes": ["x: other folds than ours (...)"]}
    assert "; folds of x not those of the scored rows; NO EXPECTATION for test rows: " in conclusion(others)
    unknown = scores | {"notes": ["x: folds unknown: it cannot"]}
    assert "; folds of x unknown; expected on 20 test rows: 0.8000 to 0.9000" in conclusion(unknown)
    assert [is_doubted(one) for one in (scores, unknown, others, leaked, shuffled)] == [False, False, True, True, True]
    for doubted in (shuffled, others, leaked):
        assert "0.8000 to 0.9000" not in conclusion(doubted)
        assert [figure.value for figure in score_figures(doubted, [])][2] == "unknown"
        assert conclusion(doubted).startswith("DOUBTED ") and score_figures(doubted, [])[0].name.startswith("doubted ")
    assert any("no row is left that took no part in any choice" in line for line in caution_lines(scores)) == (
        len(tuned) == 4
    )


def test_equal_weights_that_are_better_by_more_than_noise_are_named_below_the_score() -> None:
    over = Difference(-0.02, 0.004, -0.028, -0.012, 20, 5, 15, swap_p=0.001)
    gain = to_plain(replace(over, value=0.02))
    scores = {"members": {"a": {}, "b": {}}, "over_equal": to_plain(over), "over_best": gain, "caveats": {}}
    (line,) = caution_lines(scores)
    assert "equal weights score +0.0200 ± 0.0040, a gain (p = 0.001)" in line and "blend.methods=[equal]" in line
    assert caution_lines({**scores, "over_equal": to_plain(replace(over, value=-0.001))}) == []
    noise = replace(over, value=-0.001, swap_p=0.6)
    (line,) = caution_lines({**scores, "over_equal": gain, "over_best": to_plain(noise)})
    assert "the best member scores more on these rows, but not by more than noise" in line
    (line,) = caution_lines({**scores, "over_equal": gain, "over_best": to_plain(over)})
    assert "the best member scores more on these rows, by more than noise" in line and "blend.methods=[best]" in line


def at_chance(classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities that have nothing to do with each other."""
    return rng.integers(0, classes, 900), rng.dirichlet(np.full(classes, 0.3), 900)


def useless_result(metric: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Targets, probabilities or values, and what the trivial baseline answers."""
    rng = np.random.default_rng(0)
    if metric == "rmse":
        values = rng.normal(50, 10, 900)
        return values, rng.permutation(values)[:, None], "the mean of all rows"
    if metric == "multilabel_macro_f1":
        sets = rng.random((900, 3)) < 0.4
        return sets, rng.uniform(0.3, 0.7, (900, 3)), "every label for every row"
    if metric == "quadratic_kappa":
        return *at_chance(5, rng), "the most frequent class for every row"
    return *at_chance(40, rng), "classes drawn at random"


@pytest.mark.parametrize("metric", ["macro_f1", "quadratic_kappa", "multilabel_macro_f1", "rmse"])
def test_a_useless_result_of_every_kind_of_target_is_called_useless_in_the_terminal_and_on_the_page(metric) -> None:
    targets, output, answer = useless_result(metric)
    ids = np.array([f"i{n:03}" for n in range(900)])
    oof, folds = (
        {"m": ViewPredictions(ids, ("identity",), output[:, None].astype(np.float32), METRICS[metric].target)},
        np.arange(900) % 3,
    )
    params = load_params(ROOT / "params.yaml", parse_overrides("honest.resamples=60 blend.rounds=1 blend.bags=2"))
    result = fit_and_score_chain(OofRows(oof, targets, folds), chain_settings(params, metric), params.honest)
    rows = EnsembleInputs(ids, targets, folds, oof, ids[:50], {}, (0, 1, 2), (), ())
    scores = to_plain(scores_of(params, result, METRICS[metric], rows))
    scores["views"] = {"m": {"effect": to_plain(result.view_effects["m"]), "left_out": {}}}
    assert f"WARNING not better than an answer that looks at no image: {answer}" in conclusion(scores)
    ((_, _, _, note), _) = summary_rows(scores, result.chain)
    assert note == "identity; not better than the trivial baseline"
    section, (figure, *_) = blend_section(scores, result.chain), score_figures(scores, [])
    assert "not better than an answer" in figure.note
    assert ("argmax" in str(section) or "corrupted" in str(section)) is (metric != "rmse")
    low, high = scores["leaderboard_band"]
    assert METRICS[metric].range[0] <= low < high <= METRICS[metric].range[1]
