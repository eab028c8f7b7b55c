"""The score chart and its caption: only the marks that are drawn are explained."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import ledger_entry

from competition.ensemble.blend import Blend
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.chain import Chain
from competition.ensemble.decision import Decision
from competition.ensemble.external_check import NOT_OUT_OF_FOLD, OTHER_FOLDS
from competition.ensemble.metrics import METRICS
from competition.report.blend_tables import baselines_of, ways_section, worth_tables
from competition.report.overview import score_charts, scores_on_test
from competition.report.svg import axis_ends
from competition.submission.ledger import Row, honest_rows_text

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


def test_diamonds_are_explained_only_if_a_score_of_test_rows_is_drawn() -> None:
    chart, caption = chart_and_caption({})
    assert "Diamonds" not in caption and "leaderboard 0.8" not in chart
    chart, caption = chart_and_caption({}, Row(ENTRY, "scored", "1", 0.89, None, "", "2026-01-02T03:04:05Z"))
    assert "Diamonds: test rows" in caption and "public leaderboard 0.8900" in chart


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


def test_submissions_scored_on_different_rows_are_named_with_their_rows() -> None:
    entries = [replace(ENTRY, digest=digest, oof_rows=size) for digest, size in (("aaaa", 539), ("bbbb", 1347))]
    rows = [Row(entry, "made", "", None, None, "", "2026-01-02T03:04:05Z") for entry in entries]
    assert honest_rows_text(rows) == "Honest scores are on different rows: aaaa on 539 rows; bbbb on 1,347 rows."
    assert honest_rows_text(rows[:1]) == ""


def test_one_member_has_no_rows_of_baselines_that_are_the_member_itself() -> None:
    alone = {"members": {"cnn": SINGLE | {"score": 0.91}}, "chosen_on": 0.91}
    charts = score_charts(SCORES | alone, CHAIN, [])
    (label,) = re.findall('aria-label="([^"]+)"', charts.drawings[0])
    assert "trivial baseline 0.9000" in label and "blend, honest 0.9100 ± 0.0100 (cnn, its views)" in label
    assert label.count("0.9100") == 1 and "equal weights" not in label and "hollow" not in charts.note
    assert [name for _, name in baselines_of(SCORES | alone)] == ["trivial baseline"]


def test_the_axes_of_useless_scores_stay_within_the_range_of_the_metric() -> None:
    assert axis_ends([0.001, 0.02], (0, 1)) == (0, pytest.approx(0.02114))
    assert axis_ends([0.98, 1.0], (0, 1)) == (pytest.approx(0.9788), 1.0)
    assert axis_ends([0.001, 0.001]) == pytest.approx((0.0009, 0.0011))  # one value: around it, and not from -0.01
    assert axis_ends([-0.2, 0.1], (-1, 1))[0] < -0.2  # a kappa may be negative
    labels = np.arange(40) % 2
    assert paired(labels, 1 - labels, labels, Evaluation(METRICS["accuracy"], 2, 50, 0)).high == 1


def test_where_a_long_name_is_cut_the_weight_of_the_member_is_whole() -> None:
    members = {"a_member_with_a_long_name_of_a_network": SINGLE, "cnn": SINGLE}
    changes = {"members": members, "no_better_members": ["cnn"]}
    narrow = str(score_charts(SCORES | changes, CHAIN, []).drawings[1])
    assert ">a_member_with_a_long_name_o…</text>" in narrow and ">weight 0.00</text>" in narrow
    assert ">cnn</text>" in narrow and ">weight 1.00, not above trivial</text>" in narrow


def test_a_blend_method_that_the_others_are_compared_with_does_not_differ_from_itself(tmp_path: Path) -> None:
    row, file = {"chosen_on": 0.92, "honest": {"value": 0.91, "error": 0.01}}, tmp_path / "list_blends.json"
    others = {"cnn": ("best", "equal"), "equal": ("best",), "best": ("equal",)}
    blends = [row | {"name": name, "over": dict.fromkeys(over, DIFFERENCE)} for name, over in others.items()]
    file.write_text(json.dumps({"blends": blends}))
    table = ways_section(file, METRICS["macro_f1"]).blocks[0]
    own = {cells[0]: [cell == "no difference" for cell in cells[3:]] for cells in table.rows}
    assert own == {"cnn": [False, False], "equal": [False, True], "best": [True, False]}


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
