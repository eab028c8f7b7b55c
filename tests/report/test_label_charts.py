"""Precision, recall and thresholds of labels, and the first screen of multi-label competitions and regressions."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import competition
from sklearn.metrics import f1_score

from competition.prepare.prepared import Prepared
from competition.report.classes import HonestRows
from competition.report.labels_and_values import glance_blocks, label_charts
from competition.report.page import Charts, SideBySide
from competition.report.terminal import with_error

NAMES = ("cat", "dog", "<b>owl", "nowhere")


def drawn(rows: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """targets, decided: (N, 4) bool; scores: (N, 4), with ties. Nothing has the last label."""
    rng = np.random.default_rng(0)
    targets = rng.random((rows, 4)) < [0.5, 0.3, 0.1, 0.0]
    scores = np.round((targets * [0.5, 0.3, 0.1, 0.0] + rng.random((rows, 4))) / 1.5, 2)
    return targets, scores >= 0.5, scores


def test_the_highest_f1_of_a_label_is_that_of_its_threshold() -> None:
    targets, decided, scores = drawn()
    (_, _, thresholds) = label_charts(targets, decided, scores, NAMES, [1]).drawings
    stated = re.search(r"dog: highest F1 (\S+) at threshold ([\d.]+)", str(thresholds))
    values = {t: f1_score(targets[:, 1], scores[:, 1] >= t) for t in np.unique(scores[:, 1])}
    best = max(values, key=lambda t: (values[t], t))
    assert (stated[1], stated[2]) == (f"{values[best]:.3f}", f"{best:.3f}")


def prepared(target: str, names: tuple[str, ...], ids: np.ndarray) -> Prepared:
    metric = {"multi": "multilabel_macro_f1", "regression": "rmse"}[target]
    index = pd.DataFrame({"id": ids, "part": "train"})
    return Prepared(Path(), competition(names, metric=metric, target=target), index, "")


def test_the_first_screen_of_several_labels_shows_the_worst_ones_with_the_rows_they_are_wrong_in() -> None:
    targets, decided, scores = drawn(40)
    ids = np.array([f"i{n:02}" for n in range(40)])
    pixels = np.zeros((40, 8, 8, 3), np.uint8)
    bars, worst = glance_blocks(HonestRows(ids, targets, decided, scores), prepared("multi", NAMES, ids), pixels)
    assert isinstance(bars, Charts) and isinstance(worst, SideBySide) and worst.name == "Worst labels"
    (tiles,) = (
        tiles
        for title, tiles in worst.groups
        if re.match(r"nowhere: F1 0\.00; 0 of 0 rows missed, given to \d+ w", title)
    )
    assert len(tiles) == 2
    for tile in tiles:
        row = int(tile.lines[-1][1:])
        assert decided[row, 3] and tile.lines[0].startswith("✕") and "nowhere" in tile.lines[0]


def test_the_first_screen_of_a_regression_shows_the_truth_beside_the_prediction_and_the_largest_errors() -> None:
    truth = np.linspace(1, 40, 40)
    values = truth + np.where(np.arange(40) == 7, 25.0, 0.1)
    ids = np.array([f"i{n:02}" for n in range(40)])
    rows = HonestRows(ids, truth, values, values[:, None])
    chart, worst = glance_blocks(rows, prepared("regression", ("value",), ids), np.zeros((40, 8, 8, 3), np.uint8))
    assert "predictions against the truth of 40 rows" in chart.drawings[0]
    assert list(worst.groups[0][1][0].lines) == ["is 8", "predicted 33", "i07"]


@pytest.mark.parametrize(
    ("score", "error", "metric", "text"),
    [
        (1.0, 0.1188, "accuracy", "1.0000 ± 0.1188 (at most 1)"),
        (0.02, 0.05, "macro_f1", "0.0200 ± 0.0500 (at least 0)"),
        (1.2, 0.5, "log_loss", "1.2000 ± 0.5000"),  # without an upper limit
        (1.0, 0.1188, "mine", "1.0000 ± 0.1188"),  # a metric of the user's
    ],
)
def test_a_score_and_its_error_do_not_claim_more_than_the_metric_can_reach(score, error, metric, text) -> None:
    assert with_error(score, error, metric) == text
