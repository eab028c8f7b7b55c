"""The score chart and its caption: only the marks that are drawn are explained."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ledger_entry

from competition.ensemble.blend import Blend
from competition.ensemble.chain import Chain
from competition.ensemble.decision import Decision
from competition.ensemble.external_check import FOLDS_UNKNOWN, NOT_OUT_OF_FOLD, OTHER_FOLDS
from competition.report.blend_tables import worth_tables
from competition.report.overview import score_charts, scores_on_test, verdict
from competition.submission.ledger import Row

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
ENTRY = ledger_entry()


def chart_and_caption(changes: dict, row: Row | None = None, grades: Path = Path("none")) -> tuple[str, str]:
    block = score_charts(SCORES | changes, CHAIN, scores_on_test(row, grades))
    return block.drawings[0], block.note


def test_a_grade_is_shown_only_beside_an_honest_score_of_its_metric(tmp_path: Path) -> None:
    grades, grade = tmp_path / "grades.json", {"public": 0.93, "private": 0.87, "public_rows": 9, "private_rows": 21}
    grades.write_text(json.dumps({ENTRY.file: {"macro_f1": grade}}))
    assert (
        "private, make grade 0.8700"
        in chart_and_caption({}, Row(ENTRY, "made", "", None, None, "", "2026-01-02T03:04:05Z"), grades)[0]
    )
    other = Row(replace(ENTRY, metric="accuracy"), "made", "", None, None, "", "2026-01-02T03:04:05Z")
    assert "make grade" not in chart_and_caption({"metric": "accuracy"}, other, grades)[0]


def test_no_interval_is_drawn_if_test_rows_are_unlike_training_rows() -> None:
    assert "expected leaderboard" in chart_and_caption({})[0]
    assert "expected leaderboard" not in chart_and_caption({"caveats": {"shift": {"differs": True}}})[0]


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
    diversity = {
        "names": ["cnn", "small"],
        "agreement": [[1.0, 0.9], [0.9, 1.0]],
        "error_correlation": [[1.0, 0.5], [0.5, 1.0]],
        "score": [-0.25, -0.5],  # greater is better, so a loss is stored with its sign changed
        "worth": [0.1, None],
    }
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
