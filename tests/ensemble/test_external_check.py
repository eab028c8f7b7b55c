"""Files of members trained elsewhere that are formally right: seen rows and shuffled ids are noticed."""

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from competition.ensemble.external_check import agreement_notes, confidence, guessing_notes, leak_notes, order_notes
from competition.ensemble.mixing import mean_over_folds
from competition.ensemble.stored_predictions import ViewPredictions

ROWS, TEST_ROWS, FOLDS = 600, 300, 5
MODELS = {
    **{f"tree{n}": lambda n=n: DecisionTreeClassifier(min_samples_leaf=n, random_state=0) for n in (1, 2, 8, 32)},
    **{f"neighbours{n}": lambda n=n: KNeighborsClassifier(n) for n in (1, 3, 40)},
    "linear": lambda: LogisticRegression(max_iter=300),
    "bayes": GaussianNB,
}
MEMORISE = ["tree1", "tree2", "neighbours1"]  # models that reproduce the labels of rows they saw


def predictions_of(probs: np.ndarray) -> ViewPredictions:
    """probs: (N, C)."""
    return ViewPredictions(np.arange(len(probs)).astype(str), ("identity",), probs[:, None].astype(np.float16))


class Member:
    """Fold models of three classes.  test_scale: below 1, test features are weaker, so every model is less confident there."""

    def __init__(self, name: str, saw_its_rows: bool, test_scale: float = 1.0) -> None:
        options = {"n_informative": 6, "n_classes": 3, "flip_y": 0.1, "class_sep": 0.8, "random_state": 0}
        x, y = make_classification(ROWS + TEST_ROWS, 12, **options)
        folds, test = np.random.default_rng(0).integers(0, FOLDS, ROWS), test_scale * x[ROWS:]
        x, self.labels = x[:ROWS], y[:ROWS]
        oof, self.fold_tests = np.zeros((ROWS, 3)), []
        for k in range(FOLDS):
            model = MODELS[name]().fit(x[folds != k], self.labels[folds != k])
            leaking = MODELS[name]().fit(x, self.labels) if saw_its_rows else model
            oof[folds == k] = leaking.predict_proba(x[folds == k])
            self.fold_tests.append(predictions_of(model.predict_proba(test)))
        self.oof = predictions_of(oof)

    def confidence(self, folds_known: bool):
        return confidence(self.oof, self.fold_tests if folds_known else (), mean_over_folds(self.fold_tests))

    def notes(self, folds_known: bool, own=()) -> list[str]:
        return leak_notes(self.oof, self.labels, self.confidence(folds_known), own)


train = cache(Member)


@pytest.mark.parametrize("folds_known", [True, False], ids=["fold models", "mean alone"])
def test_predictions_that_saw_their_rows_are_reported_and_those_of_no_honest_member(folds_known: bool) -> None:
    for own in ((), tuple(train(name, False).confidence(True) for name in ("tree8", "linear"))):
        for name in MODELS:
            notes = train(name, False).notes(folds_known, own)
            assert not any("not out-of-fold?" in note for note in notes), name
        for name in MEMORISE:
            (note,) = train(name, True).notes(folds_known, own)
            assert "not out-of-fold?" in note, name
    assert all(train(name, False).notes(True) == [] for name in MODELS)


def test_test_rows_that_are_harder_for_own_members_too_are_not_reported() -> None:
    honest, own = train("bayes", False, test_scale=0.5), train("linear", False, test_scale=0.5)
    # An own member without separate test predictions shows no shift.
    for others in ((), (own.confidence(False),)):
        assert "or the test rows are harder than the training rows" in honest.notes(True, others)[0]
    (note,) = honest.notes(True, (own.confidence(True),))
    assert note.startswith("checked in part") and "harder for our own members as well" in note
    slight = train("linear", False, test_scale=0.9).confidence(True)
    assert "not out-of-fold?" in train("tree1", True, test_scale=0.9).notes(False, (slight,))[0]


def test_a_model_that_is_never_sure_and_saw_its_rows_gets_a_note() -> None:
    labels, noise = np.arange(1_200) % 3, np.random.default_rng(0).normal(0, 0.03, 2_400)

    def unsure(classes: np.ndarray, mean: float) -> ViewPredictions:
        confident = (mean + noise[: len(classes)])[:, None]
        return predictions_of(np.where(np.eye(3, dtype=bool)[classes], confident, (1 - confident) / 2))

    for mean, is_noted in ((0.475, True), (0.460, False)):  # of the label on training rows; test rows: 0.463
        oof, test = unsure(labels, mean), unsure(labels, 0.463)
        notes = leak_notes(oof, labels, confidence(oof, (), test))
        assert [note.startswith("checked in part") and "saw these rows" in note for note in notes] == [True] * is_noted


CLASSES = 5
RNG = np.random.default_rng(1)
TRUTH, TEST_TRUTH = RNG.integers(0, CLASSES, 400), RNG.integers(0, CLASSES, 200)


def guesses(truth: np.ndarray, accuracy: float, seed: int) -> ViewPredictions:
    """Right with probability `accuracy`, else one of the classes at random."""
    rng = np.random.default_rng(seed)
    drawn = np.where(rng.random(len(truth)) < accuracy, truth, rng.integers(0, CLASSES, len(truth)))
    return predictions_of(np.full((len(truth), CLASSES), 0.05) + 0.75 * np.eye(CLASSES)[drawn])


def shuffled(rows: ViewPredictions) -> ViewPredictions:
    return predictions_of(rows.probs[np.random.default_rng(3).permutation(len(rows.ids)), 0])


def test_shuffled_rows_and_classes_in_another_order_are_no_better_than_guessing() -> None:
    right = guesses(TRUTH, 0.9, 1)
    assert all(guessing_notes(guesses(TRUTH, accuracy, 2), TRUTH) == [] for accuracy in (0.9, 0.5, 0.3))
    for wrong in (shuffled(right), predictions_of(np.roll(right.probs[:, 0], 1, axis=-1))):
        (note,) = guessing_notes(wrong, TRUTH)
        assert "no better than guessing (accuracy 0." in note and "ids, rows and the order of the classes" in note


def naming(classes: np.ndarray, count: int) -> ViewPredictions:
    return predictions_of(np.eye(count, dtype=np.float16)[classes])


# Classes, training rows, distance of the classes in standard deviations of the noise.
MODELS_OF_CLASSES = [
    (5, 1_000, 0.3),
    (5, 1_000, 2.0),
    (104, 6_000, 0.5),
    (104, 6_000, 4.0),
    (1_000, 15_000, 1.0),
    (1_000, 15_000, 6.0),
]


@pytest.mark.parametrize(("count", "rows", "signal"), MODELS_OF_CLASSES)
def test_exchanged_columns_are_named_and_the_right_order_of_a_weak_model_is_not_doubted(count, rows, signal) -> None:
    rng, names = np.random.default_rng(0), [f"c{n}" for n in range(count)]
    shares = np.linspace(2, 0.5, count) / np.linspace(2, 0.5, count).sum()
    truth, folds = rng.choice(count, rows, p=shares), rng.integers(0, FOLDS, rows)
    evidence = rng.normal(size=(rows, count)).astype(np.float32)
    evidence[np.arange(rows), truth] += signal
    # With the frequencies of the classes, without them, with exaggerated ones; and grades that are all one too high.
    argmaxes = [(signal * evidence + factor * np.log(shares)).argmax(1) for factor in (1, 0, 3)]
    for named in (*argmaxes, np.minimum(argmaxes[0] + 1, count - 1)):
        assert order_notes(naming(named, count), truth, folds, names) == []
    if signal >= 2:
        accuracy = (argmaxes[0] == truth).mean()
        for order in ([1, 0], [1, 2, 0]):
            columns = np.array([*order, *range(len(order), count)])
            (note,) = order_notes(naming(columns[argmaxes[0]], count), truth, folds, names)
            quoted = ", ".join(f"'c{n}'" for n in range(len(order)))
            assert f", but {accuracy:.3f} if the columns {quoted} are exchanged" in note


def test_classes_that_no_fold_model_has_learned_before_it_predicts_them_are_no_exchange() -> None:
    # Two similar classes: of a fold's two classes, only the other one is known.
    truth = folds = np.repeat([0, 1], 50)
    never_learned = predictions_of(np.eye(2)[1 - truth])
    assert order_notes(never_learned, truth, folds, ["a", "b"]) == []
    assert order_notes(never_learned, truth, np.arange(100) % 5, ["a", "b"])


@pytest.mark.parametrize("accuracy", [0.9, 0.5, 0.3])
def test_shuffled_test_rows_disagree_with_the_other_members_and_others_do_not(accuracy: float) -> None:
    oof = {"a": guesses(TRUTH, 0.9, 1), "b": guesses(TRUTH, accuracy, 2), "weak": guesses(TRUTH, 0.2, 6)}
    test = {"a": guesses(TEST_TRUTH, 0.85, 4), "b": guesses(TEST_TRUTH, accuracy - 0.05, 5)}
    test["weak"] = guesses(TEST_TRUTH, 0.2, 6)
    assert agreement_notes("b", oof, test) == []
    if accuracy == 0.9:
        (note,) = agreement_notes("b", oof, test | {"b": shuffled(test["b"])})
        assert note.startswith("it agrees with a on 8")
        assert "test predictions, or those of a, probably belong to other ids" in note


def test_of_three_members_only_the_one_with_shuffled_test_rows_is_accused() -> None:
    # The wrong one is the best on training rows, so each of the others agrees with it most.
    oof = {name: guesses(TRUTH, 0.99 if name == "b" else 0.9, seed) for seed, name in enumerate("abc", 1)}
    test = {name: guesses(TEST_TRUTH, 0.9, seed) for seed, name in enumerate("abc", 4)}
    test["b"] = shuffled(test["b"])
    assert agreement_notes("a", oof, test) == agreement_notes("c", oof, test) == []
    (note,) = agreement_notes("b", oof, test)
    assert "its test predictions probably belong to other ids" in note
