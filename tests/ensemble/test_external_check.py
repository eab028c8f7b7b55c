"""Real models of three classes, 5 folds: honest members, and members whose out-of-fold rows were all seen."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from competition.ensemble.external_check import Confidence, confidence, leak_notes
from competition.ensemble.predictions import ViewPredictions, mean_over_folds

ROWS, TEST_ROWS, FOLDS = 600, 300, 5
LEAVES = (1, 2, 6, 8, 32)
MODELS: dict[str, Callable[[], Any]] = {
    **{f"tree{n}": lambda n=n: DecisionTreeClassifier(min_samples_leaf=n, random_state=0) for n in LEAVES},
    **{f"neighbours{n}": lambda n=n: KNeighborsClassifier(n) for n in (1, 2, 3, 9, 40)},
    "linear": lambda: LogisticRegression(max_iter=300),
    "bayes": GaussianNB,
}
MEMORISE = ["tree1", "tree2", "neighbours1"]  # models that reproduce the labels of rows they saw


@dataclass(frozen=True)
class Member:
    oof: ViewPredictions
    fold_tests: list[ViewPredictions]
    labels: np.ndarray

    def confidence(self, folds_known: bool) -> Confidence:
        return confidence(self.oof, self.fold_tests if folds_known else (), mean_over_folds(self.fold_tests))

    def notes(self, folds_known: bool, own: tuple[Confidence, ...] = ()) -> list[str]:
        return leak_notes(self.oof, self.labels, self.confidence(folds_known), own)


def table(probs: np.ndarray) -> ViewPredictions:
    return ViewPredictions(np.arange(len(probs)).astype(str), ("given",), probs[:, None].astype(np.float16))


@cache
def train(name: str, saw_its_rows: bool, seed: int = 0, test_scale: float = 1.0) -> Member:
    """test_scale: below 1, test features are weaker, so every model is less confident there."""
    x, y = make_classification(
        ROWS + TEST_ROWS, 12, n_informative=6, n_classes=3, flip_y=0.1, class_sep=0.8, random_state=seed
    )
    rng = np.random.default_rng(seed)
    folds, test = rng.integers(0, FOLDS, ROWS), test_scale * x[ROWS:]
    x, y = x[:ROWS], y[:ROWS]
    oof, fold_tests = np.zeros((ROWS, 3)), []
    for k in range(FOLDS):
        model = MODELS[name]().fit(x[folds != k], y[folds != k])
        leaking = MODELS[name]().fit(x, y) if saw_its_rows else model
        oof[folds == k] = leaking.predict_proba(x[folds == k])
        fold_tests.append(table(model.predict_proba(test)))
    return Member(table(oof), fold_tests, y)


def test_a_dozen_out_of_fold_members_are_not_reported() -> None:
    references_of_own_members = tuple(train(name, False).confidence(True) for name in ("tree8", "linear"))
    for name in MODELS:
        member = train(name, False)
        for folds_known in (True, False):
            for references in ((), references_of_own_members):
                assert not any("not out-of-fold?" in note for note in member.notes(folds_known, references)), name
        assert member.notes(True) == []


@pytest.mark.parametrize("name", MEMORISE)
@pytest.mark.parametrize("folds_known", [True, False], ids=["fold models", "mean alone"])
def test_out_of_fold_predictions_that_saw_their_rows_are_reported(name: str, folds_known: bool) -> None:
    references_of_own_members = tuple(train(model, False).confidence(True) for model in ("tree8", "linear"))
    for references in ((), references_of_own_members):
        (note,) = train(name, True).notes(folds_known, references)
        assert "not out-of-fold?" in note


def test_test_rows_that_are_harder_for_own_members_too_are_not_reported() -> None:
    honest, own = train("bayes", False, test_scale=0.5), train("linear", False, test_scale=0.5)
    assert "or the test rows are harder than the training rows" in honest.notes(True)[0]
    # An own member without separate test predictions shows no shift.
    assert "or the test rows are harder than the training rows" in honest.notes(True, (own.confidence(False),))[0]
    (note,) = honest.notes(True, (own.confidence(True),))
    assert note.startswith("checked in part") and "harder for our own members as well" in note
    cheater = train("tree1", True, test_scale=0.9)
    slight = train("linear", False, test_scale=0.9).confidence(True)
    assert "not out-of-fold?" in cheater.notes(False, (slight,))[0]
