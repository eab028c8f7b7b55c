"""What the report says of classes, labels and members: scores, confusions and thresholds, and held-out scores."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import competition
from sklearn.metrics import f1_score, precision_score, recall_score

from competition.ensemble.metrics import METRICS
from competition.prepare.prepared import Prepared
from competition.report.classes import HonestRows, class_scores, classes_section, rare_note
from competition.report.labels_and_values import glance_blocks, label_charts
from competition.report.members import TrainedFold, by_epoch, read_history, scores_table
from competition.report.next_steps import training_steps
from competition.report.terminal import with_error

LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
PREDICTED = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 0])
CLASSES = 5  # no row has class 4, and none is predicted as it


def test_every_class_has_the_scores_of_scikit_learn_the_worst_and_of_two_equal_ones_the_larger_first() -> None:
    scores = class_scores(LABELS, PREDICTED, CLASSES)
    numbers = [score.number for score in scores]
    assert [score.f1 for score in scores] == sorted(score.f1 for score in scores) and numbers[:2] == [3, 4]
    for measure, of in ((f1_score, "f1"), (precision_score, "precision"), (recall_score, "recall")):
        expected = measure(LABELS, PREDICTED, labels=range(CLASSES), average=None, zero_division=0)
        assert [getattr(score, of) for score in scores] == pytest.approx(expected[numbers])
    rows, data = HonestRows(IDS[:10], LABELS, PREDICTED, np.eye(CLASSES)[PREDICTED]), competition(tuple("abcde"))
    (_, table, *_) = classes_section(rows, Prepared(Path(), data, INDEX, "")).blocks
    confusions = {cells[0]: cells[1] for cells in table.rows}
    assert confusions == {"a": "b (2)", "b": "c (1)", "c": "–", "d": "a (1)", "e": "–"}
    assert class_scores(LABELS[:, None] == range(CLASSES), PREDICTED[:, None] == range(CLASSES), CLASSES) == scores


def test_rare_classes_are_called_worse_only_beyond_the_noise_of_the_rows() -> None:
    rows, rng = np.array([30] * 4 + [90] * 4 + [100] * 4), np.random.default_rng(0)
    labels = np.repeat(np.arange(12), rows)
    by_size = [np.where(rng.random(len(labels)) < (labels < 2) * share, labels + 4, labels) for share in (0.5, 0.05)]
    assert "are worse: of 12 classes, mean F1 0.8" in rare_note(labels, by_size[0], rows)  # of two in four
    assert "not worse beyond noise" in rare_note(*(one[labels != 3] for one in (labels, by_size[1])), rows)
    assert "Rare classes are better" in rare_note(labels, by_size[0], rows[::-1])


NAMES = ("cat", "dog", "<b>owl", "nowhere")


IDS = np.array([f"i{n:02}" for n in range(40)])
INDEX, PIXELS = pd.DataFrame({"id": IDS, "part": "train"}), np.zeros((40, 8, 8, 3), np.uint8)


def test_several_labels_have_the_threshold_of_their_highest_f1_and_pictures_of_the_rows_they_are_wrong_in() -> None:
    rng = np.random.default_rng(0)
    targets = rng.random((40, 4)) < [0.5, 0.3, 0.1, 0.0]  # nothing has the last label
    scores = np.round((targets * [0.5, 0.3, 0.1, 0.0] + rng.random((40, 4))) / 1.5, 2)  # with ties
    decided = scores >= 0.5
    (_, _, thresholds) = label_charts(targets, decided, scores, NAMES, [1]).drawings
    stated = re.search(r"dog: highest F1 (\S+) at threshold ([\d.]+)", str(thresholds))
    values = {t: f1_score(targets[:, 1], scores[:, 1] >= t) for t in np.unique(scores[:, 1])}
    best = max(values, key=lambda t: (values[t], t))
    assert (stated[1], stated[2]) == (f"{values[best]:.3f}", f"{best:.3f}")

    data = Prepared(Path(), competition(NAMES, metric="multilabel_macro_f1", target="multi"), INDEX, "")
    _, worst = glance_blocks(HonestRows(IDS, targets, decided, scores), data, PIXELS)
    title = re.compile(r"nowhere: F1 0\.00; 0 of 0 rows missed, \d+ others taken for it")
    (tiles,) = (tiles for name, tiles in worst.groups if title.match(name))
    assert len(tiles) == 2
    for tile in tiles:
        row = int(tile.lines[-1][1:])
        assert decided[row, 3] and tile.lines[0].startswith("✕") and "nowhere" in tile.lines[0]


def test_the_pictures_of_the_worst_classes_show_each_row_once() -> None:
    targets, decided = np.repeat([0, 1, 2, 2], 10), np.r_[np.repeat([0, 1], 10), [0] * 3, [1] * 2, [2] * 15]
    data = Prepared(Path(), competition(("a", "b", "c")), INDEX, "")
    _, worst = glance_blocks(HonestRows(IDS, targets, decided, np.eye(3)[decided]), data, PIXELS)
    shown = [tile.lines[-1] for _, tiles in worst.groups for tile in tiles]
    assert sorted(shown) == [f"i{n}" for n in range(20, 25)]  # rows of c that are taken for a or b


def test_the_first_screen_of_a_regression_shows_the_truth_beside_the_prediction_and_the_largest_errors() -> None:
    truth = np.linspace(1, 40, 40)
    values = truth + np.where(np.arange(40) == 7, 25.0, 0.1)
    data = Prepared(Path(), competition(("value",), metric="rmse", target="regression"), INDEX, "")
    _, worst = glance_blocks(HonestRows(IDS, truth, values, values[:, None]), data, PIXELS)
    assert list(worst.groups[0][1][0].lines) == ["is 8", "predicted 33", "i07"]


def test_a_score_and_its_error_do_not_claim_more_than_the_metric_can_reach() -> None:
    assert with_error(1.0, 0.1188, "accuracy") == "1.0000 ± 0.1188 (at most 1)"
    assert with_error(0.02, 0.05, "macro_f1") == "0.0200 ± 0.0500 (at least 0)"
    assert with_error(1.2, 0.5, "log_loss") == "1.2000 ± 0.5000"  # without an upper limit
    assert with_error(1.0, 0.1188, "mine") == "1.0000 ± 0.1188"  # a metric of the user's


def test_a_history_is_read_with_nan_for_what_was_not_scored(tmp_path: Path) -> None:
    stored = pd.DataFrame([{"epoch": 1, "loss": 0.0, "held_out": None}, {"epoch": 2, "loss": 1e-9, "held_out": 0.25}])
    stored.to_csv(tmp_path / "history.csv", index=False)
    history = read_history(tmp_path / "history.csv")
    assert list(history) == list(stored) and by_epoch([history], "inner").shape == (2, 1)
    for column in stored:
        np.testing.assert_array_equal(by_epoch([history], column)[:, 0], stored[column].astype(float))


TRIVIAL = [("the most frequent class for every row", score) for score in (0.2, 0.2, 0.3, 0.3)]


def models(scores: dict[int, float]) -> list[TrainedFold]:
    history = pd.DataFrame({"epoch": [1], "loss": 1.0, "learning_rate": 0.1, "held_out": 0.8, "held_out_loss": 0.8})
    return [TrainedFold(fold, score, history) for fold, score in scores.items()]


def test_a_member_that_still_gains_is_trained_longer_by_its_own_key_and_no_other_member_is() -> None:
    rising = np.array([0.5, 0.7, 0.8, 0.85])
    histories = [
        pd.DataFrame({"epoch": [1, 2, 3, 4], "held_out": rising * share, "held_out_loss": 1 - rising})
        for share in (1.0, 0.99, 1.01)
    ]
    folds = [TrainedFold(fold, 0.85, history) for fold, history in enumerate(histories)]
    steps = training_steps({"cnn": folds, "small seed 1": folds}, METRICS["macro_f1"])
    sets = [f"members.{name}.train.epochs=6" for name in ("cnn", "small")]
    assert [step.command for step in steps] == [f'make train predict SET="{each}"' for each in sets]


def test_a_mean_over_folds_that_took_part_in_tuning_is_marked() -> None:
    scores = {0: 0.9, 1: 0.8, 2: 0.7, 3: 0.6}
    both = {"cnn": models(scores), "small": models(scores)}
    table = scores_table(both, {"cnn": [], "small": [0, 1]}, TRIVIAL, "accuracy")
    cnn, small, trivial = table.rows
    assert trivial[:2] == ["trivial baseline", "0.2500"] and TRIVIAL[0][0] in table.note
    assert cnn[1] == "0.7500" and small[1] == "0.7500 †"
    assert small[2:] == ["0.9000 †", "0.8000 †", "0.7000", "0.6000"] and "† The rows of that fold" in table.note
    plain = scores_table({"cnn": models(scores)}, {"cnn": []}, TRIVIAL, "accuracy")
    assert "†" not in plain.note and len(plain.columns) == 2 + 4
