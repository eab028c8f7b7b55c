"""The score chart and its caption, and which two submissions are selected."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ledger_entry, params

from competition.ensemble.blend_weights import Blend
from competition.ensemble.chain import Chain
from competition.ensemble.decision import Decision
from competition.ensemble.expected_score import ExpectedScore
from competition.ensemble.external_check import FOLDS_UNKNOWN, NOT_OUT_OF_FOLD, OTHER_FOLDS, joined_notes
from competition.ensemble.metrics import METRICS
from competition.files.manifest import write_json
from competition.report.blend_tables import worth_tables
from competition.report.overview import score_charts, scores_on_test, verdict
from competition.report.stored_blends import blend_text
from competition.report.submissions import choose_two, leaderboard_section
from competition.submission import ledger
from competition.submission.ledger import SubmissionState
from pipelines.kaggle.submissions import doubt_lines, equal_file_lines

ENTRY = ledger_entry(oof_rows=1000, test_rows=500)


def row(name: str, honest: float, public: float | None = None, **changes) -> SubmissionState:
    entry = replace(ENTRY, digest=name * 12, file=f"{name}.csv", honest_score=honest, **changes)
    return SubmissionState(entry, "made", "", public, None, "", "2026-01-02T03:04:05Z")


HALF = {"oof_rows": 500}
EXPECTED = (ExpectedScore(500, 0.90, 0.02, 0.01, 1.0),)
# Which are recommended: the submissions, and the first and the second choice.
CHOICES = {
    "the best public score of those within a standard error of the best": (
        [row("a", 0.900, 0.93), row("b", 0.905, 0.91), row("c", 0.880, 0.99), row("d", 0.901, 0.92)], "ba",
    ),
    "without public scores the next best": ([row("a", 0.900), row("b", 0.905), row("d", 0.901)], "bd"),
    "the only one": ([row("a", 0.900)], "a"),
    "no partial one beside complete ones": ([row("a", 0.9), row("b", 0.905), row("e", 0.99, partial="2of5")], "ba"),
    "a partial one alone": ([row("e", 0.99, partial="2of5")], "e"),
    "the smaller log loss, and no optimistic one": (
        [row("a", 0.3, metric="log_loss"), row("b", 0.29, metric="log_loss"), row("c", 0.1, metric="log_loss", optimistic=True)], "ba",
    ),
    "none on other rows": ([row("a", 0.999, **HALF), row("b", 0.90), row("c", 0.90), row("d", 0.95, optimistic=True)], "cb"),
    "none in folds of other groups": ([row("a", 0.9, grouping="hash"), row("b", 0.7, grouping="column x")], "b"),
    "a worse one if no other is known": ([row("b", 0.85), row("g", 0.95)], "gb"),
    "no doubted one": ([row("a", 0.9), row("b", 0.999, is_doubted=True), row("c", 0.9), row("d", 1.0, is_doubted=True)], "ca"),
    "one that its public score refutes comes last": (
        [row("a", 0.90, 0.89, expected=EXPECTED), row("b", 0.98, 0.70, expected=EXPECTED), row("c", 0.88)], "ac",
    ),
    "a refuted one alone": ([row("b", 0.98, 0.70, expected=EXPECTED)], "b"),
    "a doubted one alone": ([row("b", 0.999, is_doubted=True)], "b"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_two_submissions_are_recommended(name: str) -> None:
    rows, expected = CHOICES[name]
    choices = choose_two(rows, params())
    assert "".join(chosen.entry.file[0] for chosen, _ in choices) == expected
    assert ("DOUBTED" in choices[0][1]) == choices[0][0].entry.is_doubted


def store_blend(folder: Path, **scores: object) -> None:
    folder.mkdir()
    (folder / "honest_oof.npz").touch()
    (folder / "scores.json").write_text(json.dumps({"metric": ENTRY.metric, "honest": ENTRY.honest_score} | scores))
    write_json(folder / "chain.json", CHAIN)


def test_doubted_submissions_are_listed_with_the_reason_of_their_own_blend_and_equal_blends_with_what_differs(tmp_path):
    rows = [row(name, 0.9, is_doubted=name != "c") for name in "abc"]
    unknown, other = [f"vit: {FOLDS_UNKNOWN}, so", f"cnn: {FOLDS_UNKNOWN}, so"], f"vit: {OTHER_FOLDS} (x)"
    store_blend(tmp_path / "a", notes=unknown)  # the same file without the doubt
    store_blend(tmp_path / "a-012345", notes=[*unknown, other])
    gone = f"DOUBTED {'b' * 12}: its blend is no longer stored"
    assert doubt_lines(rows, tmp_path) == [f"DOUBTED {'a' * 12}: {other}", gone]
    assert "(DOUBTED macro_f1 0.9000" in equal_file_lines([rows[0].entry, row("a", 0.9).entry, rows[1].entry])[0]
    assert blend_text(tmp_path / "a") == "a (cnn; honest macro_f1 0.9000; folds of vit, cnn unknown)"
    words = "folds of vit, cnn unknown; folds of vit not those of the scored rows"
    assert blend_text(tmp_path / "a-012345") == f"a-012345 (cnn; DOUBTED macro_f1 0.9000; {words})"
    assert joined_notes([*unknown, other]) == [f"vit, cnn: {FOLDS_UNKNOWN}, so", other]


def test_a_public_score_outside_the_interval_of_chance_is_counted() -> None:
    rows = [row("a", 0.90, 0.905, expected=EXPECTED), row("b", 0.91, 0.60, expected=EXPECTED)]
    section = leaderboard_section(rows, params(), True)
    assert "2 submissions with a public score; 1 outside" in section.blocks[0].lines[0]


def test_scores_of_make_grade_are_shown_and_without_any_score_what_can_be_done_is(tmp_path: Path) -> None:
    grades, rows = tmp_path / "grades.json", [row("a", 0.90, expected=EXPECTED), row("b", 0.91)]
    text, table = leaderboard_section(rows, params(), True, unscored="x is not on Kaggle").blocks
    assert text.lines == ["x is not on Kaggle"] and {cells[3] for cells in table.rows} == {"–"}
    grades.write_text(json.dumps({"a.csv": {ENTRY.metric: {"public": 0.905, "private": 0.8}}}))
    text, table = leaderboard_section(ledger.with_local_grades(rows, grades), params(), True).blocks
    assert "1 submission with a public score; 0 outside" in text.lines[0]
    shown = {cells[0]: cells[3] for cells in table.rows}
    assert shown == {"a.csv": "public 0.90500 private 0.80000 (make grade)", "b.csv": "–"}


def test_the_table_names_the_rows_of_each_score_and_what_does_not_compare_with_them() -> None:
    elsewhere = [row("a", 0.91, **HALF), row("c", 0.97, **HALF), row("d", 0.92, **HALF)]
    doubted, other_metric = row("e", 1.0, is_doubted=True), row("f", 0.99, metric="accuracy")
    rows = [*elsewhere, doubted, other_metric, row("b", 0.85), row("g", 0.95)]
    table = leaderboard_section(rows, params(), True).blocks[-1]
    assert [(cells[0], "on 1,000 rows" in cells[2]) for cells in table.rows] == [("g.csv", True), ("b.csv", True)]
    assert "5 of 7 submissions do not compare with gggg" in table.note
    is_marked = [line["honest"].endswith(" DOUBTED") for line in ledger.table([doubted, rows[-1]], 0.3, "macro_f1")]
    assert is_marked == [True, False]


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


def chart_and_caption(
    changes: dict, row: SubmissionState | None = None, grades: Path = Path("none")
) -> tuple[str, str]:
    block = score_charts(SCORES | changes, CHAIN, scores_on_test(row, grades))
    return block.drawings[0], block.note


def test_a_grade_is_shown_only_beside_an_honest_score_of_its_metric(tmp_path: Path) -> None:
    grades, grade = tmp_path / "grades.json", {"public": 0.93, "private": 0.87, "public_rows": 9, "private_rows": 21}
    grades.write_text(json.dumps({ENTRY.file: {"macro_f1": grade}}))
    for metric, is_shown in (("macro_f1", True), ("accuracy", False)):
        row = SubmissionState(replace(ENTRY, metric=metric), "made", "", None, None, "", "2026-01-02T03:04:05Z")
        chart, _ = chart_and_caption({"metric": metric}, row, grades)
        assert ("private, make grade 0.8700" in chart, "make grade" in chart) == (is_shown, is_shown)


def test_only_a_score_of_rows_that_took_no_part_is_drawn_and_quoted_as_honest() -> None:
    chart, caption = chart_and_caption({})
    assert "blend, honest" in chart and "Quote the filled one" in caption
    chart, caption = chart_and_caption({"optimistic": True, "tuned_folds": [0, 1]})
    assert 'class="dot"' not in chart and "All are hollow, because every row chose hyperparameters" in caption
    chart, caption = chart_and_caption({"tuned_folds": [0, 1]})
    assert chart.count('class="hollow"') == 1
    assert "the same 539 out-of-fold rows; those of folds 0, 1 chose hyperparameters and are left out" in caption
    for doubt in (NOT_OUT_OF_FOLD, OTHER_FOLDS):
        chart, caption = chart_and_caption({"notes": [f"vit: {doubt}"]})
        assert "blend, doubted" in chart and "blend, honest" not in chart and "Quote" not in caption


def test_what_a_member_is_worth_names_its_loss_as_it_is_stated_everywhere() -> None:
    tables = {"agreement": [[1.0, 0.9], [0.9, 1.0]]}
    # Greater is better, so a loss is stored with its sign changed.
    diversity = {"names": ["cnn", "small"], "score": [-0.25, -0.5], "worth": [0.1, -1e-9], **tables}
    (table,) = worth_tables(SCORES | {"diversity": diversity}, METRICS["log_loss"])
    assert [cells[1:3] for cells in table.rows] == [["0.2500", "+0.1000"], ["0.5000", "+0.0000"]]
    assert "share of rows with the same most probable class" in table.note
    (table,) = worth_tables(SCORES | {"diversity": diversity}, METRICS["rmse"])
    assert "correlation of the values" in table.note


GAIN = DIFFERENCE | {"value": 0.8, "error": 0.01, "low": 0.78, "high": 0.82}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "on rows that took no part in any choice; the trivial baseline scores 0.9000"),
        ({"optimistic": True}, "is optimistic: every row took part in choosing the hyperparameters"),
        ({"notes": [f"vit: {FOLDS_UNKNOWN}: it cannot"]}, "may be optimistic: folds of vit unknown."),
        ({"notes": [f"vit: {OTHER_FOLDS} ("]}, "may be optimistic: folds of vit not those of the scored rows."),
        ({"over_trivial": GAIN | {"value": 0.0}}, "not better than an answer that looks at no row"),
    ],
)
def test_the_verdict_is_one_sentence_that_says_what_the_score_is_worth(changes: dict, words: str) -> None:
    sentence = verdict(scores := SCORES | {"over_trivial": GAIN} | changes)
    assert sentence.startswith("macro_f1 0.9100 ± 0.0100") and words in sentence
    assert verdict(scores, True) == sentence.replace("any choice;", "making this blend, one of several;")
