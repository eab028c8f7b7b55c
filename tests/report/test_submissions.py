"""The score chart and its caption, which two submissions are selected, and the rank correlation of honest and public scores."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import ledger_entry
from scipy.stats import spearmanr

from competition.ensemble.blend import Blend
from competition.ensemble.chain import Chain
from competition.ensemble.decision import Decision
from competition.ensemble.expected_score import ExpectedScore
from competition.ensemble.external_check import FOLDS_UNKNOWN, NOT_OUT_OF_FOLD, OTHER_FOLDS
from competition.report.blend_tables import worth_tables
from competition.report.overview import score_charts, scores_on_test, verdict
from competition.report.submissions import choose_two, leaderboard_section, rank_correlation
from competition.submission import ledger
from competition.submission.ledger import Row

ENTRY = ledger_entry(oof_rows=1000, test_rows=500)


def row(name: str, honest: float, public: float | None = None, **changes) -> Row:
    entry = replace(ENTRY, digest=name * 12, file=f"{name}.csv", honest_score=honest, **changes)
    return Row(entry, "made", "", public, None, "", "2026-01-02T03:04:05Z")


def chosen(rows, changed=lambda a, b: None) -> list[str]:
    return [row.entry.file[0] for row, _ in choose_two(rows, changed)]


def test_the_best_honest_score_comes_first_and_the_best_public_score_within_noise_second() -> None:
    rows = [row("a", 0.900, 0.93), row("b", 0.905, 0.91), row("c", 0.880, 0.99), row("d", 0.901, 0.92)]
    assert chosen(rows) == ["b", "a"]  # c has the best public score, but is worse by more than a standard error


def test_without_public_scores_the_second_is_the_one_that_differs_most() -> None:
    rows = [row("a", 0.900), row("b", 0.905), row("d", 0.901)]
    shares = {("b.csv", "a.csv"): 0.02, ("b.csv", "d.csv"): 0.07}
    assert chosen(rows, lambda a, b: shares[a, b]) == ["b", "d"]
    assert chosen(rows[:1]) == ["a"]
    partial = row("e", 0.99, partial="2of5")
    assert chosen([*rows, partial], lambda a, b: None) == ["b", "d"] and chosen([partial]) == ["e"]


def test_a_smaller_log_loss_is_better_and_optimistic_scores_are_not_compared() -> None:
    losses = [row("a", 0.30), row("b", 0.29), row("c", 0.1, optimistic=True)]
    assert chosen([replace(one, entry=replace(one.entry, metric="log_loss")) for one in losses]) == ["b", "a"]


def test_the_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 20).astype(float), rng.random(20)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert np.isnan(rank_correlation(np.ones(5), b[:5]))


def test_a_public_score_outside_the_interval_of_chance_is_counted() -> None:
    expected = (ExpectedScore(500, 0.90, 0.02, 0.01, 1.0),)
    rows = [row("a", 0.90, 0.905, expected=expected), row("b", 0.91, 0.60, expected=expected)]
    section = leaderboard_section(rows, 0.3, lambda a, b: None, True)
    assert "2 submissions with a public score; 1 of them is outside" in section.blocks[0].lines[0]


def test_honest_scores_of_other_rows_are_not_compared_and_every_score_names_its_rows() -> None:
    rows = [row("a", 0.999, oof_rows=400), row("b", 0.90), row("c", 0.90), row("d", 0.95, optimistic=True)]
    assert chosen(rows) == ["c", "b"]
    table = leaderboard_section(rows, 0.3, lambda a, b: None, True).blocks[-1]
    assert all("on 1,000 rows" in cells[2] for cells in table.rows)
    assert "2 of 4 submissions do not compare with cccc" in table.note
    assert [why for _, why in choose_two(rows[:2], lambda a, b: None)] == ["the only submission on these rows"]


def test_a_worse_submission_is_no_second_choice_while_others_do_not_compare() -> None:
    elsewhere = [row("a", 0.91, oof_rows=400), row("c", 0.97, oof_rows=400), row("d", 0.92, oof_rows=400)]
    doubted, other_metric = row("e", 1.0, is_doubted=True), row("f", 0.99, metric="accuracy")
    worse, best = row("b", 0.85), row("g", 0.95)
    rows = [*elsewhere, doubted, other_metric, worse, best]
    table = leaderboard_section(rows, 0.3, lambda a, b: None, True).blocks[-1]
    assert [cells[0] for cells in table.rows] == ["g.csv"]
    assert "`make compare-blends A=gggggggg B=cccccccc` compares cccc with gggg on their common rows" in table.note
    assert chosen([worse, best]) == ["g", "b"]  # nothing else is known that may be better


def test_a_doubted_submission_is_never_recommended_and_says_so_where_it_is_alone() -> None:
    rows = [row("a", 0.90), row("b", 0.999, is_doubted=True), row("c", 0.90), row("d", 1.0, is_doubted=True)]
    assert chosen(rows) == ["c", "a"] and chosen(rows[:2]) == ["a"]
    ((_, why),) = choose_two(rows[1:2], lambda a, b: None)
    assert why == "the only submission; DOUBTED, see the warnings above"
    is_marked = [line["honest"].endswith(" DOUBTED") for line in ledger.table(rows, 0.3, "macro_f1")]
    assert is_marked == [False, True, False, True]


DIFFERENCE = {"value": 0.01, "error": 0.02, "low": -0.03, "high": 0.05, "changed": 3, "corrected": 2, "corrupted": 1}
SINGLE = {"score": 0.9, "standard_error": 0.01, "name": "a class"}
SCORES = {
    "metric": "macro_f1", "members": {"cnn": SINGLE, "small": SINGLE}, "equal": SINGLE, "best": SINGLE, "best_members": {"cnn": [0, 1]},
    "chosen_on": 0.92, "honest": 0.91, "standard_error": 0.01, "honest_rows": 539, "tuned_folds": [],
    "leaderboard_band": [0.88, 0.94], "over_equal": DIFFERENCE, "over_best": DIFFERENCE,
    "trivial": SINGLE, "over_trivial": DIFFERENCE, "no_better_members": [],
}  # fmt: skip
BLEND, ARGMAX = Blend("equal", "mean", {"cnn": 1.0}), Decision("argmax", (), (), 0.0)
CHAIN = Chain("macro_f1", {"cnn": {"identity": 1.0}}, BLEND, ARGMAX)


def chart_and_caption(changes: dict, row: Row | None = None, grades: Path = Path("none")) -> tuple[str, str]:
    block = score_charts(SCORES | changes, CHAIN, scores_on_test(row, grades))
    return block.drawings[0], block.note


def test_a_grade_is_shown_only_beside_an_honest_score_of_its_metric(tmp_path: Path) -> None:
    grades, grade = tmp_path / "grades.json", {"public": 0.93, "private": 0.87, "public_rows": 9, "private_rows": 21}
    grades.write_text(json.dumps({ENTRY.file: {"macro_f1": grade}}))
    for metric, is_shown in (("macro_f1", True), ("accuracy", False)):
        row = Row(replace(ENTRY, metric=metric), "made", "", None, None, "", "2026-01-02T03:04:05Z")
        chart, _ = chart_and_caption({"metric": metric}, row, grades)
        assert ("private, make grade 0.8700" in chart, "make grade" in chart) == (is_shown, is_shown)


def test_scores_on_rows_that_chose_hyperparameters_are_hollow_and_left_out_folds_are_named() -> None:
    chart, caption = chart_and_caption({"optimistic": True, "tuned_folds": [0, 1]})
    assert 'class="dot"' not in chart and "All are hollow, because every row chose hyperparameters" in caption
    chart, caption = chart_and_caption({"tuned_folds": [0, 1]})
    assert chart.count('class="hollow"') == 1
    assert "the same 539 out-of-fold rows; those of folds 0, 1 chose hyperparameters and are left out" in caption


def test_a_doubted_blend_is_labelled_so_and_nothing_says_to_quote_it() -> None:
    for doubt in (NOT_OUT_OF_FOLD, OTHER_FOLDS):
        chart, caption = chart_and_caption({"notes": [f"vit: {doubt}"]})
        assert "blend, doubted" in chart and "blend, honest" not in chart and "Quote" not in caption
    chart, caption = chart_and_caption({})
    assert "blend, honest" in chart and "Quote the filled one" in caption


def test_what_a_member_is_worth_names_its_loss_as_it_is_stated_everywhere() -> None:
    tables = {"agreement": [[1.0, 0.9], [0.9, 1.0]], "error_correlation": [[1.0, 0.5], [0.5, 1.0]]}
    # Greater is better, so a loss is stored with its sign changed.
    diversity = {"names": ["cnn", "small"], "score": [-0.25, -0.5], "worth": [0.1, None], **tables}
    (table,) = worth_tables(SCORES | {"metric": "log_loss", "diversity": diversity})
    assert [cells[1:3] for cells in table.rows] == [["0.2500", "+0.1000"], ["0.5000", "–"]]


GAIN = DIFFERENCE | {"value": 0.8, "error": 0.01, "low": 0.78, "high": 0.82}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "on rows that took no part in any choice; an answer that looks at no image scores 0.9000"),
        ({"optimistic": True}, "is optimistic: every row took part in choosing the hyperparameters"),
        ({"notes": [f"vit: {FOLDS_UNKNOWN}: it cannot"]}, "may be optimistic: folds of vit unknown."),
        ({"notes": [f"vit: {OTHER_FOLDS} ("]}, "may be optimistic: folds of vit not those of the scored rows."),
        ({"over_trivial": GAIN | {"value": 0.0}}, "not better than an answer that looks at no image"),
    ],
)
def test_the_verdict_is_one_sentence_that_says_what_the_score_is_worth(changes: dict, words: str) -> None:
    sentence = verdict(SCORES | {"over_trivial": GAIN} | changes)
    assert sentence.startswith("macro_f1 0.9100 ± 0.0100") and words in sentence
