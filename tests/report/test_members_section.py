"""Held-out scores: marked where their rows chose hyperparameters. Curves: drawn only where there is one."""

import numpy as np
import pandas as pd
import pytest

from competition.files.manifest import Manifest
from competition.report.members import TrainedFold, curve_charts, scores_table

MANIFEST = Manifest("", {}, {}, {}, {})
TRIVIAL = [("the most frequent class for every row", score) for score in (0.2, 0.2, 0.3, 0.3)]


def models(scores: dict[int, float], every_epoch: bool = False) -> list[TrainedFold]:
    known = [0.5, 0.6, 0.7, 0.8] if every_epoch else [np.nan, np.nan, np.nan, 0.8]
    history = pd.DataFrame(
        {"epoch": range(1, 5), "loss": 1.0, "learning_rate": 0.1, "held_out": known, "held_out_loss": known}
    )
    return [TrainedFold(fold, MANIFEST, score, history, 1.0) for fold, score in scores.items()]


def test_a_mean_over_folds_that_took_part_in_tuning_is_marked_and_stands_beside_one_that_is_not() -> None:
    scores = {0: 0.9, 1: 0.8, 2: 0.7, 3: 0.6}
    table = scores_table(
        {"cnn": models(scores), "small": models(scores)}, {"cnn": [], "small": [0, 1]}, TRIVIAL, "accuracy"
    )
    assert list(table.columns)[1:3] == ["mean of the folds' accuracy", "mean of folds 2, 3"]
    cnn, small, trivial = table.rows
    assert trivial[:3] == ["trivial baseline", "0.2500", "0.3000"] and TRIVIAL[0][0] in table.note
    assert cnn[1:3] == ["0.7500", "0.6500"] and small[1:3] == ["0.7500 †", "0.6500"]
    assert small[4:] == ["0.9000 †", "0.8000 †", "0.7000", "0.6000"] and "† The rows of that fold" in table.note
    plain = scores_table({"cnn": models(scores)}, {"cnn": []}, TRIVIAL, "accuracy")
    assert "†" not in plain.note and len(plain.columns) == 3 + 4


@pytest.mark.parametrize(("metric", "is_clipped"), [("accuracy", True), ("rmse", False), ("log_loss", False)])
def test_low_scores_of_the_first_epochs_are_clipped_but_never_low_errors_which_are_the_good_ones(metric, is_clipped):
    (charts,) = curve_charts("cnn", models(dict.fromkeys(range(3), 0.8), every_epoch=True), metric)
    assert any("the lowest fifth is below" in drawing for drawing in charts.drawings) is is_clipped
