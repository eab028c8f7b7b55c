"""Shuffled ids and exchanged classes are noticed although every file is formally right."""

import numpy as np
import pytest

from competition.ensemble.external_check import agreement_notes, guessing_notes, order_notes
from competition.ensemble.predictions import ViewPredictions

CLASSES, ROWS, TEST_ROWS = 5, 400, 200
RNG = np.random.default_rng(1)
FOLDS = np.arange(ROWS) % 5
TRUTH, TEST_TRUTH = RNG.integers(0, CLASSES, ROWS), RNG.integers(0, CLASSES, TEST_ROWS)


def table(truth: np.ndarray, accuracy: float, seed: int) -> ViewPredictions:
    rng = np.random.default_rng(seed)
    guesses = np.where(rng.random(len(truth)) < accuracy, truth, rng.integers(0, CLASSES, len(truth)))
    probs = np.full((len(truth), 1, CLASSES), 0.05, np.float32)
    probs[np.arange(len(truth)), 0, guesses] = 0.8
    return ViewPredictions(np.arange(len(truth)).astype(str), ("given",), probs)


def shuffled(table: ViewPredictions) -> ViewPredictions:
    return ViewPredictions(table.ids, table.views, table.probs[np.random.default_rng(3).permutation(len(table.ids))])


@pytest.mark.parametrize("accuracy", [0.9, 0.5, 0.3])
def test_members_of_any_quality_that_are_joined_correctly_get_no_note(accuracy: float) -> None:
    oof = {"a": table(TRUTH, 0.9, 1), "b": table(TRUTH, accuracy, 2)}
    test = {"a": table(TEST_TRUTH, 0.85, 4), "b": table(TEST_TRUTH, accuracy - 0.05, 5)}
    assert guessing_notes(oof["b"], TRUTH, FOLDS) == [] and agreement_notes("b", oof, test) == []


def test_shuffled_rows_and_classes_in_another_order_are_no_better_than_guessing() -> None:
    right = table(TRUTH, 0.9, 1)
    for wrong in (shuffled(right), ViewPredictions(right.ids, right.views, np.roll(right.probs, 1, axis=-1))):
        (note,) = guessing_notes(wrong, TRUTH, FOLDS)
        assert "no better than guessing (accuracy 0." in note and "ids, rows and the order of the classes" in note


def test_two_exchanged_columns_among_many_of_a_weak_member_are_found() -> None:
    rng, classes = np.random.default_rng(0), 104
    truth = rng.choice(classes, 4000, p=rng.dirichlet(np.full(classes, 0.7)))
    guesses = np.where(rng.random(4000) < 0.5, truth, rng.integers(0, classes, 4000))
    a, b = np.argsort(-np.bincount(truth))[3:5]
    guesses = np.where(guesses == a, b, np.where(guesses == b, a, guesses))
    probs = np.eye(classes, dtype=np.float32)[guesses][:, None]
    predictions = ViewPredictions(np.arange(4000).astype(str), ("given",), probs)
    (note,) = order_notes(predictions, truth, [f"c{n}" for n in range(classes)])
    assert (
        f"column 'c{a}' holds 'c{b}'" in note and f"column 'c{b}' holds 'c{a}'" in note and note.count(" holds ") == 2
    )


@pytest.mark.parametrize(("classes", "accuracy"), [(2, 0.0), (2, 0.5), (5, 0.2), (5, 0.95), (104, 0.0), (104, 0.5)])
def test_columns_of_weak_members_and_of_classes_that_are_confused_are_not_said_to_be_exchanged(
    classes: int, accuracy: float
) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        truth, is_right = rng.integers(0, classes, 600), rng.random(600) < accuracy
        by_chance, too_high = rng.integers(0, classes, 600), np.minimum(truth + 1, classes - 1)
        for wrong in (by_chance, too_high, np.zeros(600, int)):
            probs = np.eye(classes, dtype=np.float32)[np.where(is_right, truth, wrong)][:, None]
            predictions = ViewPredictions(np.arange(600).astype(str), ("given",), probs)
            assert order_notes(predictions, truth, [str(n) for n in range(classes)]) == []


def test_ids_of_one_fold_that_are_shifted_are_noted_with_the_fold() -> None:
    one = table(TRUTH, 0.53, 2)
    probs = one.probs.copy()
    probs[FOLDS == 3] = np.roll(probs[FOLDS == 3], 1, axis=0)
    (note,) = guessing_notes(ViewPredictions(one.ids, one.views, probs), TRUTH, FOLDS)
    assert note.startswith("its predictions of fold 3 are no better than guessing (accuracy 0.")
    assert note.endswith("check that ids and rows of this fold belong together")


@pytest.mark.parametrize(
    ("rows", "accuracy", "largest_class"),  # the last: share of the rows that are of class 0 for certain
    [(12, 0.5, 0.0), (60, 0.2, 0.0), (400, 0.95, 0.0), (12, 0.2, 0.9), (60, 0.95, 0.9), (400, 0.5, 0.9)],
)
def test_weak_members_and_small_folds_are_not_said_to_be_shifted(
    rows: int, accuracy: float, largest_class: float
) -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        truth = np.where(rng.random(rows) < largest_class, 0, rng.integers(0, CLASSES, rows))
        notes = guessing_notes(table(truth, accuracy, seed), truth, np.arange(rows) % 5)
        assert not any("of fold" in note for note in notes)


def test_shuffled_test_rows_disagree_with_the_other_members() -> None:
    oof = {"a": table(TRUTH, 0.9, 1), "b": table(TRUTH, 0.9, 2), "weak": table(TRUTH, 0.2, 6)}
    test = {"a": table(TEST_TRUTH, 0.9, 4), "b": shuffled(table(TEST_TRUTH, 0.9, 5)), "weak": table(TEST_TRUTH, 0.2, 7)}
    (note,) = agreement_notes("b", oof, test)
    assert (
        note.startswith("it agrees with a on 8")
        and "test predictions, or those of a, probably belong to other ids" in note
    )


def test_of_three_members_only_the_one_with_shuffled_test_rows_is_accused() -> None:
    # The wrong one is the best on training rows, so each of the others agrees with it most.
    oof = {name: table(TRUTH, 0.99 if name == "b" else 0.9, seed) for seed, name in enumerate("abc", 1)}
    test = {name: table(TEST_TRUTH, 0.9, seed) for seed, name in enumerate("abc", 4)} | {
        "b": shuffled(table(TEST_TRUTH, 0.9, 5))
    }
    assert agreement_notes("a", oof, test) == agreement_notes("c", oof, test) == []
    (note,) = agreement_notes("b", oof, test)
    assert "its test predictions probably belong to other ids" in note
