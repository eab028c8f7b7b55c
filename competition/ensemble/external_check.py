"""Checks of external predictions: do the rows belong to their ids, and was each row predicted by a model that did not train on it?

Shuffled ids or classes leave a file valid in form. Such predictions are right more often with another order of the columns
(`order_notes`), are no better than guessing (`guessing_notes`), or agree with another member on the training rows and not on the
test rows (`agreement_notes`).

A model is more confident on rows that it was trained on (`leak_notes`; confidence: the probability of the most probable class).
Averaging K fold models lowers the confidence, so the confidence on training rows, each predicted by one fold model, cannot be
compared with that of test predictions averaged over fold models. If test rows are like training rows, two inequalities hold for
every member without a leak:

1. The confidence of single fold models on held-out training rows is not above their confidence on test rows. This needs the test
   predictions of each fold model.
2. The mean probability of the label on training rows is not above the mean confidence on test rows, also if test predictions are
   averaged: averaging does not change the mean probability of the true class, and no class is more probable than the most
   probable one.

If test rows are harder than training rows, both can fail without a leak. The drop in confidence of our own single fold models
shows how much harder they are (`shift`). An external member may lose twice as much, because models react differently: a difference
of up to TOLERANCE + 2 * shift gets the note "checked in part", a larger one "not out-of-fold?". So does the second inequality if it
fails by less than TOLERANCE, but by more than sampling error: a model that is never sure of its answers leaks without confidence.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from competition.config.errors import first_few
from competition.ensemble.stored_predictions import ViewPredictions

NOT_OUT_OF_FOLD = "not out-of-fold?"  # the start of a note
FOLDS_UNKNOWN, OTHER_FOLDS = "folds unknown", "other folds than ours"  # starts of notes
LEAK_UNCHECKED = "whether its models were trained on the rows they predict is"  # the start of a note
OTHER_IDS = "probably belong to other ids"  # part of a note on test predictions
ERRORS = 3.0  # a difference of up to this many standard errors counts as sampling error
TOLERANCE = 0.02  # probability; smaller differences are no doubt of the score
DROP_ERRORS = 6.0  # a drop of the agreement by up to this many standard errors counts as sampling error
LARGEST_DROP = 0.2  # of the agreement; test rows that are harder than training rows explain smaller ones


@dataclass(frozen=True)
class Mean:
    """Mean over rows, with its standard error."""

    value: float
    error: float

    def exceeds(self, other: "Mean", margin: float) -> bool:
        """Return True if this mean exceeds the other by more than the margin and the sampling error."""
        return self.value - other.value > margin + ERRORS * math.hypot(self.error, other.error)


@dataclass(frozen=True)
class Confidence:
    """Probability of the most probable class, averaged over views, models and rows."""

    oof: Mean  # of single fold models on their held-out training rows
    single: Mean | None  # of single fold models on test rows, where their predictions are known
    mean: Mean  # of the mean over fold models on test rows


def confidence(oof: ViewPredictions, fold_tests: Sequence[ViewPredictions], test: ViewPredictions) -> Confidence:
    """fold_tests: one per fold model, the same rows in the same order; empty = unknown.  test: mean over fold models."""
    single = _mean(*(part.probs.max(-1) for part in fold_tests)) if fold_tests else None
    return Confidence(_mean(oof.probs.max(-1)), single, _mean(test.probs.max(-1)))


def leak_notes(
    oof: ViewPredictions, labels: np.ndarray, external: Confidence, own: Sequence[Confidence] = ()
) -> list[str]:
    """A note if the models were probably trained on rows that they predict, or if that was checked in part; else [].

    oof, labels: of the same N training rows.  external: of the same member as oof.  own: of members trained here.
    """
    shift = max([0.0, *(one.oof.value - one.single.value for one in own if one.single)])
    inequalities = []  # (on training rows, what it is not above without a leak, both in words)
    if external.single is not None:
        means = f"{external.oof.value:.3f} on training rows and {external.single.value:.3f} on test rows"
        inequalities.append((external.oof, external.single, f"the confidence of its fold models is {means}"))
    of_label = _mean(oof.probs[np.arange(len(labels)), :, labels])
    means = f"{of_label.value:.3f} on training rows and above the confidence on test rows, {external.mean.value:.3f}"
    inequalities.append((of_label, external.mean, f"the mean probability of the label is {means}"))
    for training, bound, text in inequalities:
        if training.exceeds(bound, TOLERANCE + 2 * shift):
            harder = "" if any(one.single for one in own) else ", or the test rows are harder than the training rows"
            return [f"{NOT_OUT_OF_FOLD} {text}: its models were probably trained on these rows{harder}"]
    for training, bound, text in inequalities:
        if training.exceeds(bound, TOLERANCE):
            return [f"checked in part: {text}; the test rows are harder for our own members as well (by {shift:.3f})"]
    training, bound, text = inequalities[-1]  # without a leak this one has room to spare
    if training.exceeds(bound, 0.0):
        return [
            f"checked in part: {text}: its models saw these rows and are not sure of what they learn, or the test rows are harder"
        ]
    return []


def _mean(*models: np.ndarray) -> Mean:
    """Mean over rows of values (N, V), one array per model, averaged over views and models."""
    values = np.mean([views.astype(np.float64).mean(1) for views in models], axis=0)
    return Mean(float(values.mean()), float(values.std() / math.sqrt(len(values))))


def guessing_notes(oof: ViewPredictions, labels: np.ndarray) -> list[str]:
    """A note if the out-of-fold predictions are no better than always naming the most frequent class.  labels: (N,) int."""
    accuracy = float((_classes(oof) == labels).mean())
    guessing = float(np.bincount(labels).max()) / len(labels)
    if accuracy > guessing + 2 * math.sqrt(guessing * (1 - guessing) / len(labels)):
        return []
    return [
        f"its out-of-fold predictions are no better than guessing (accuracy {accuracy:.3f}; guessing: {guessing:.3f}); check that "
        "ids, rows and the order of the classes belong together"
    ]


def order_notes(oof: ViewPredictions, labels: np.ndarray, folds: np.ndarray, names: Sequence[str]) -> list[str]:
    """A note if columns seem to be exchanged: an order of the columns is better for each class that it moves, by ERRORS standard errors.

    labels, folds: (N,) int.  names: of the C classes.
    A weak model names a frequent class instead of a rare one, but not the rare one instead of the frequent one as well. An argmax
    that is best for any frequencies of the classes has no cycle of classes of which each is named instead of the one before.
    Classes whose rows are all in one fold are left out, because no fold model learned them before it predicted them.
    """
    from scipy.optimize import linear_sum_assignment

    count, of_folds = len(names), folds.max() + 1
    table = np.bincount(labels * count + _classes(oof), minlength=count**2).reshape(count, count)  # label, named class
    right = table.diagonal()[:, None]
    is_better = table - right > ERRORS * np.sqrt(table + right)
    is_better[np.bincount(np.unique(labels * of_folds + folds) // of_folds, minlength=count) < 2] = False
    suspects, column = np.flatnonzero(is_better.any(1)), np.arange(count)  # column: of each class, in the best order
    column[suspects] = suspects[linear_sum_assignment(table[np.ix_(suspects, suspects)], maximize=True)[1]]
    moved = suspects[is_better[suspects, column[suspects]]]
    while not np.isin(column[moved], moved).all():  # only whole cycles: grades that are all one too high are none
        moved = moved[np.isin(column[moved], moved)]
    if not len(moved):
        return []
    before, gain = table.trace() / len(labels), (table[moved, column[moved]] - right[moved, 0]).sum() / len(labels)
    return [
        f"its accuracy is {before:.3f}, but {before + gain:.3f} if the columns {first_few(names[n] for n in moved)} are exchanged: check "
        "the order of the columns in its files (oof and test)"
    ]


def agreement_notes(name: str, oof: Mapping[str, ViewPredictions], test: Mapping[str, ViewPredictions]) -> list[str]:
    """A note if a member agrees with others on training rows, but with none of them on test rows.

    oof, test: of all members; the same rows in the same order. Members that agree less than half as often on training rows as the
    one that agrees best tell nothing. Of two members, it stays open which one is wrong.
    """
    if not len(test[name].ids):
        return []
    training, tests = _classes(oof[name]), _classes(test[name])
    others = {other: float((_classes(oof[other]) == training).mean()) for other in oof if other != name}
    if not others:
        return []
    other = max(others, key=lambda one: others[one])
    shares = {one: float((_classes(test[one]) == tests).mean()) for one in others if others[one] >= others[other] / 2}
    for one, now in shares.items():
        error = math.sqrt(others[one] * (1 - others[one]) * (1 / len(training) + 1 / len(tests)))
        if others[one] - now <= max(LARGEST_DROP, DROP_ERRORS * error):
            return []
    whose = "its test predictions" if len(shares) > 1 else f"its test predictions, or those of {other},"
    return [
        f"it agrees with {other} on {others[other]:.0%} of the training rows but on {shares[other]:.0%} of the test rows: {whose} "
        f"{OTHER_IDS}, its columns have another order there, or its models were trained on the rows they predict out of fold"
    ]


def _classes(predictions: ViewPredictions) -> np.ndarray:
    """(N,) int: the most probable class by the mean over views."""
    return predictions.probs.astype(np.float32).mean(1).argmax(-1)


def doubted_members(scores: Mapping[str, Any], doubt: str) -> list[str]:
    """The members of whose predictions a note of the blend says so.  scores: of scores.json.  doubt: such as OTHER_IDS."""
    return [note.partition(":")[0] for note in scores.get("notes", ()) if doubt in note]


def doubts_of_folds(scores: Mapping[str, Any]) -> list[str]:
    """In a few words, of which members the folds are unknown or others."""
    doubts = {FOLDS_UNKNOWN: "unknown", OTHER_FOLDS: "not those of the scored rows"}
    return [
        f"folds of {', '.join(m)} {words}" for doubt, words in doubts.items() if (m := doubted_members(scores, doubt))
    ]


def doubts_of(scores: Mapping[str, Any]) -> list[str]:
    """The notes that make the honest score doubtful.

    A member probably knew the scored rows, or has other folds, or its test predictions have the ids of others.
    """
    doubts = (NOT_OUT_OF_FOLD, OTHER_FOLDS, OTHER_IDS)
    return [note for note in scores.get("notes", ()) if any(doubt in note for doubt in doubts)]


def joined_notes(notes: Sequence[str]) -> list[str]:
    """The notes, those that say the same of several members as one: "cnn, vit: folds unknown"."""
    names_of: dict[str, list[str]] = {}
    for note in notes:
        name, _, text = note.partition(": ")
        names_of.setdefault(text, []).append(name)
    return [f"{', '.join(names)}: {text}" for text, names in names_of.items()]
