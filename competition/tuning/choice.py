"""The result of a study: its best trial, kept only if it beats the member's own values on predictions it was not chosen on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np

from competition.ensemble.bootstrap import resampled, score_with_error
from competition.ensemble.metrics import Metric

RESAMPLES = 400


@dataclass(frozen=True)
class Comparison:
    """Difference of two settings of a member, greater is better, on folds and seeds that chose neither."""

    difference: float
    error: float  # standard error, over rows and over seeds
    seeds: int
    rows: int

    @property
    def is_gain(self) -> bool:
        """True if the difference is more than its standard error."""
        return self.difference > self.error


def compare(
    labels: np.ndarray,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    metric: Metric,
    classes: int,
    seed: int,
) -> Comparison:
    """Compare out-of-fold probabilities of the same rows, one pair for each training seed.

    labels: (N,).  before, after: (N, C) each.  The rows' part of the error is that of the mean over seeds; all
    predictions are scored on the same resamples. With one seed the spread over seeds is unknown and counts as 0.
    """
    outputs = [metric.output_of(probs) for pair in zip(before, after, strict=True) for probs in pair]
    scores = np.stack(resampled(labels, outputs, metric, classes, RESAMPLES, seed))  # (2S, R)
    by_rows = float((scores[1::2] - scores[::2]).mean(0).std())
    values = np.array([metric.evaluate(labels, output, classes) for output in outputs])
    differences = values[1::2] - values[::2]
    seeds = len(differences)
    by_seeds = float(differences.std(ddof=1)) / seeds**0.5 if seeds > 1 else 0.0
    return Comparison(float(differences.mean()), hypot(by_rows, by_seeds), seeds, len(labels))


def score_of_rows(
    labels: np.ndarray, probs: np.ndarray, metric: Metric, classes: int, seed: int
) -> tuple[float, float]:
    """Score and its standard error; greater is better.  labels: (N,).  probs: (N, C)."""
    score = score_with_error(labels, metric.output_of(probs), metric, classes, RESAMPLES, seed)
    return score.value, score.error


def pareto_front(trials: Sequence[Any]) -> list[Any]:
    """Complete trials that no other one beats in score without taking more time, the fastest first.

    trials: Optuna's, with values (score, seconds).
    """
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    front: list[Any] = []
    for trial in sorted(complete, key=lambda trial: (trial.values[1], -trial.values[0], trial.number)):
        if not front or trial.values[0] > front[-1].values[0]:
            front.append(trial)
    return front


def saved_seconds(trials: Sequence[Any]) -> float:
    """Training time that pruning saved: the rest of each pruned trial at its own speed.

    trials: finished ones with the user attributes `seconds` and `share`, the part of a full trial that was trained.
    """
    pruned = [trial.user_attrs for trial in trials if trial.state.name == "PRUNED"]
    return sum(facts["seconds"] * (1 / facts["share"] - 1) for facts in pruned if facts.get("share"))


def mean_share(trials: Sequence[Any]) -> float:
    """Mean cost of a trial as a share of an unpruned one; 1 without trials."""
    shares = [float(trial.user_attrs.get("share", 1.0)) for trial in trials]
    return float(np.mean(shares)) if shares else 1.0


def format_values(values: Mapping[str, Any]) -> str:
    """learning_rate 0.0012, flip horizontal"""
    return ", ".join(f"{key} {format_value(value)}" for key, value in values.items())


def format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)
