"""Are the rows of external predictions joined to the right ids? Files with shuffled ids or classes pass every formal check."""

import math
from collections.abc import Mapping

import numpy as np

from competition.ensemble.predictions import ViewPredictions

ERRORS = 6.0  # a drop of the agreement by up to this many standard errors counts as sampling error
LARGEST_DROP = 0.2  # of the agreement; test rows that are harder than training rows explain smaller ones


def guessing_notes(oof: ViewPredictions, labels: np.ndarray) -> list[str]:
    """A note if the out-of-fold predictions are no better than always naming the most frequent class.

    labels: (N,) int, of the same rows.
    """
    accuracy = float((_classes(oof) == labels).mean())
    guessing = float(np.bincount(labels).max()) / len(labels)
    if accuracy > guessing + 2 * math.sqrt(guessing * (1 - guessing) / len(labels)):
        return []
    return [
        f"its out-of-fold predictions are no better than guessing (accuracy {accuracy:.3f}; always the most frequent class: "
        f"{guessing:.3f}); check that ids, rows and the order of the classes belong together"
    ]


def agreement_notes(name: str, oof: Mapping[str, ViewPredictions], test: Mapping[str, ViewPredictions]) -> list[str]:
    """A note if a member agrees with another one on training rows, but far less on test rows.

    oof, test: all members; the same rows in the same order. Of the other members the one counts that agrees best.
    """
    if not len(test[name].ids):
        return []
    training, tests = _classes(oof[name]), _classes(test[name])
    others = {other: float((_classes(oof[other]) == training).mean()) for other in oof if other != name}
    if not others:
        return []
    other = max(others, key=lambda one: others[one])
    before, now = others[other], float((_classes(test[other]) == tests).mean())
    error = math.sqrt(before * (1 - before) * (1 / len(training) + 1 / len(tests)))
    if before - now <= max(LARGEST_DROP, ERRORS * error):
        return []
    return [
        f"it agrees with {other} on {before:.0%} of the training rows but on {now:.0%} of the test rows: its test predictions "
        "probably belong to other ids, or its models were trained on the rows they predict out of fold"
    ]


def _classes(predictions: ViewPredictions) -> np.ndarray:
    """(N,) int: the most probable class by the mean over views."""
    return predictions.probs.astype(np.float32).mean(1).argmax(-1)
