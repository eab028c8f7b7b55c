from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from competition.ensemble.metrics import METRICS
from competition.prepare.prepared import Caveats
from competition.prepare.shift import Shift
from competition.report.caveats import accuracy, caveats_section, series_and_shift_effects, shift_sentences
from competition.report.overview import score_figures
from competition.report.page import Text
from competition.workspace.ensemble_inputs import EnsembleInputs
from pipelines.main_job.blend import caution_lines, conclusion

ROWS = 200
IDS = np.array([f"i{n:03}" for n in range(ROWS)])
LABELS, FOLDS = np.arange(ROWS) % 2, np.arange(ROWS) // 2 % 5
ALIKE = Shift(auc=0.51, low=0.48, high=0.54, train_rows=ROWS, test_rows=100, unlike=1)
OTHER = replace(ALIKE, auc=0.91, low=0.88, high=0.94, unlike=60)
GAIN = {"value": 0.4, "error": 0.01, "low": 0.38, "high": 0.42, "changed": 90, "corrected": 85, "corrupted": 5}
BLEND = {
    "honest": 0.9, "standard_error": 0.01, "honest_rows": ROWS, "rows": ROWS, "test_rows": 100, "members": {"one": {}},
    "leaderboard_band": [0.88, 0.92], "over_trivial": GAIN,
    "trivial": {"name": "classes drawn at random", "score": 0.5, "standard_error": 0.01},
}  # fmt: skip
SERIES = {name: n // 4 for n, name in enumerate(IDS[:40])}  # ten series of four rows, each over two or three folds


def scores_of(shift=None, series=None, odds=None, predictions=LABELS, metric="macro_f1", tuned=()):
    rows = EnsembleInputs(IDS, LABELS, FOLDS, {}, np.array([]), {}, (0, 1, 2, 3, 4), tuned, ())
    caveats = Caveats(series or {}, odds or {}, shift)
    effects = series_and_shift_effects(caveats, rows, predictions, METRICS[metric], 2, 0)
    return {**BLEND, "metric": metric, "caveats": effects}


def test_the_warning_states_the_score_of_the_rows_that_test_rows_resemble():
    """Every tenth row is wrong, and these are the rows that test rows resemble."""
    wrong = np.arange(ROWS) % 10 == 0
    odds = {name: 9.0 if is_wrong else 1.0 for name, is_wrong in zip(IDS, wrong)}
    scores = scores_of(OTHER, odds=odds, predictions=np.where(wrong, 1 - LABELS, LABELS), metric="accuracy")
    lines = caution_lines(scores)
    assert lines[0].startswith("  WARNING the 100 test rows do not look like the training rows")
    weighted = scores["caveats"]["shift"]["weighted"]
    assert weighted["value"] == pytest.approx(0.5, abs=0.02)
    assert weighted["effective_rows"] == pytest.approx(360**2 / (20 * 81 + 180))  # 72 rows of equal weight
    assert weighted["error"] == pytest.approx(0.5 / np.sqrt(72), rel=0.2)
    assert "60 test rows are unlike any training row" in lines[2]


def test_rows_with_and_without_a_mate_of_their_series_are_scored_separately():
    predictions = np.where(np.arange(ROWS) % 8 == 7, 1 - LABELS, LABELS)
    predictions[:40] = LABELS[:40]
    within = {name: 50 + int(fold) for name, fold in zip(IDS, FOLDS)}  # series of rows of one fold
    scores = scores_of(series=within | SERIES, predictions=predictions)
    with_mate, without_mate = (scores["caveats"]["series"][name] for name in ("with_mate", "without_mate"))
    assert (with_mate["rows"], without_mate["rows"]) == (40, 160)
    assert (with_mate["value"], without_mate["value"]) == (1.0, 0.875) and with_mate["error"] > 0.02
    (line,) = caution_lines(scores)
    assert "accuracy 1.0000" in line and "0.8750" in line and "group_by=embedding" in line
    assert scores_of(series=within)["caveats"] == {}
    # Rows that were tuned on do not count.
    tuned = scores_of(series=SERIES, tuned=(0,))["caveats"]["series"]
    assert tuned["with_mate"]["rows"] + tuned["without_mate"]["rows"] == int((FOLDS != 0).sum())


def test_correlated_rows_of_a_series_make_the_error_larger_and_an_accuracy_of_one_has_an_error() -> None:
    series = np.repeat(np.arange(50), 8)
    right = np.repeat(np.random.default_rng(0).random(50) < 0.8, 8)
    labels, predicted = np.zeros(400, int), np.where(right, 0, 1)
    together, apart = accuracy(labels, predicted, series), accuracy(labels, predicted, np.arange(400))
    assert together["error"] == pytest.approx(apart["error"] * np.sqrt(8), rel=0.05)
    for rows in (1, 30):
        scored = accuracy(np.zeros(rows, int), np.zeros(rows, int), np.arange(rows))
        assert scored["value"] == 1 and scored["error"] > 0.5 / (rows + 2)


def test_terminal_and_report_show_the_interval_only_if_test_rows_look_like_training_rows(tmp_path):
    train = pd.DataFrame({"id": IDS, "fold": FOLDS})
    for shift, interval in ((OTHER, "unknown"), (ALIKE, "0.8800 to 0.9200")):
        scores = scores_of(shift, odds=dict.fromkeys(IDS, 1.0))
        assert conclusion(scores).endswith("expected on 100 test rows: 0.8800 to 0.9200 (95 %)") == (shift is ALIKE)
        assert (caution_lines(scores) == []) == (shift is ALIKE)
        assert {f.name: f.value for f in score_figures(scores, [])}["expected on test rows"] == interval
        section = caveats_section(tmp_path, Caveats(SERIES, {}, shift), train, scores)
        texts = [block for block in section.blocks if isinstance(block, Text)]
        assert [text.warning for text in texts[:2]] == [True, shift is OTHER]
        assert "40 of 200 training photos may be series of 10 objects" in texts[0].lines[0]
    slight = replace(ALIKE, auc=0.53, low=0.51)
    for shift, words in ((ALIKE, "test rows look like"), (slight, "test rows differ little from")):
        (line,) = shift_sentences(scores_of(shift))
        section = caveats_section(tmp_path, Caveats({}, {}, shift), train, {})
        assert line.startswith(words) and any(words.capitalize() in text for text in section.blocks[1].lines)
