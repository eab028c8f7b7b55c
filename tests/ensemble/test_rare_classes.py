import numpy as np
import pytest

from competition.ensemble.bootstrap import paired, resampled, score_with_error
from competition.ensemble.metrics import METRICS
from competition.ensemble.rare_classes import one_wrong_row, small_class_warning, with_borrowed_rows

from .worlds import SINGLE_LABEL

F1, ACCURACY = METRICS["macro_f1"], METRICS["accuracy"]


def reported_over_true(metric, rows: int, worlds: int = 300, classes: int = 30, right: float = 0.8) -> float:
    """The mean reported standard error of 30 classes of `rows` rows by the spread of the score over worlds."""
    rng, labels = np.random.default_rng(rows), np.repeat(np.arange(classes), rows)
    scores, errors = [], []
    for _ in range(worlds):
        wrong = (labels + rng.integers(1, classes, len(labels))) % classes
        predicted = np.where(rng.random(len(labels)) < right, labels, wrong)
        scores.append(metric.evaluate(labels, predicted, classes))
        errors.append(resampled(labels, [predicted], metric, classes, 100, seed=0)[0].std())
    return float(np.mean(errors) / np.std(scores))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 10])
def test_the_standard_error_of_classes_of_few_rows_is_the_true_one(rows):
    """Within counting error (4 %) of 0.9 to 1.1.  Without rescaling: 0 for one row, 0.71 for two, 0.82 for three."""
    assert 0.87 <= reported_over_true(ACCURACY, rows) <= 1.13
    # F1 of a class bends within two or three rows: there the error is too large by up to 15 %, never too small.
    assert 0.87 <= reported_over_true(F1, rows) <= 1.22


def test_a_class_of_one_row_is_as_uncertain_as_the_next_rarest_classes():
    labels = np.repeat([0, 1, 2], [1, 40, 400])
    predicted = labels.copy()
    predicted[1:11] = 2  # a quarter of class 1 is wrong
    alone = resampled(labels, [predicted], METRICS["macro_f1"], 3, 2000, seed=0)[0]
    everyone_else = resampled(labels[1:], [predicted[1:]], METRICS["macro_f1"], 3, 2000, seed=0)[0]
    assert alone.std() > 2 * everyone_else.std()
    assert alone.std() == pytest.approx(np.sqrt(0.25 * 0.75) / 3, rel=0.1)


def test_borrowed_rows_keep_what_happened_to_them_and_change_their_class():
    labels = np.array([0] + [1] * 29 + [2] * 50)
    predicted = labels.copy()
    predicted[1:4] = 2, 0, 1
    probs = np.eye(3)[predicted]
    grown, (given, likely) = with_borrowed_rows(labels, [predicted, probs])
    assert np.array_equal(grown[80:], np.zeros(29, int)) and np.array_equal(grown[:80], labels)
    assert given[80:84].tolist() == [2, 1, 0, 0]  # another class, the lender for the borrower, right, right
    assert np.array_equal(likely.argmax(1), given)
    two = np.repeat([0, 1], [2, 10])
    assert len(with_borrowed_rows(two, [two])[0]) == 12  # nobody needs to borrow


@pytest.mark.parametrize("name", SINGLE_LABEL)
def test_a_result_without_a_mistake_has_an_error_of_one_row(name):
    labels = np.arange(200) % 4
    metric, probs = METRICS[name], np.full((200, 8), 0.01)
    probs[np.arange(200), labels] = 0.93
    score = score_with_error(labels, labels if metric.needs_labels else probs, metric, 8, 100, seed=0)
    assert score.error > 0
    if name in ("accuracy", "top_5"):
        assert score.error == pytest.approx(1 / 200)


def test_one_wrong_row_is_what_the_bootstrap_says_when_one_row_is_wrong():
    labels = np.arange(300) % 3
    once = labels.copy()
    once[0] = 1
    measured = resampled(labels, [once], F1, 3, 4000, seed=0)[0].std()
    assert one_wrong_row(labels, labels, F1, 3) == pytest.approx(measured, rel=0.1)
    everything_wrong = (labels + 1) % 3
    assert one_wrong_row(labels, everything_wrong, ACCURACY, 3) == pytest.approx(1 / 300)


def test_a_difference_within_a_class_of_two_rows_has_an_error():
    labels = np.repeat([0, 1], [2, 98])
    before, after = labels.copy(), labels.copy()
    before[:2] = 1
    difference = paired(labels, before, after, F1, 2, 100, seed=0)
    assert difference.error > difference.value / 3 and not difference.is_significant


def test_classes_of_few_rows_are_named_by_their_number():
    labels = np.repeat([0, 1, 2, 3], [1, 4, 5, 50])
    (line,) = small_class_warning(labels, 5)  # the fifth class has no row at all
    assert line.startswith("3 of 5 classes have fewer than 5 rows, 1 of them one row")
    assert small_class_warning(np.repeat([0, 1], 5), 2) == []
