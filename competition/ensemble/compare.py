"""Compare two results on the same rows, and estimate how much the training seed alone changes a score."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.bootstrap import Difference, Evaluation, paired
from competition.ensemble.metrics import Metric, default_labels

Label = int | np.ndarray  # a class number, or the (C,) bool labels of a multi-label row


@dataclass(frozen=True)
class Comparison:
    """Difference of two results, and the rows whose label changed."""

    difference: Difference
    changed: tuple[tuple[str, Label, Label], ...]  # id, label before, label after; none of a regression


@dataclass(frozen=True)
class SeedNoise:
    """Scores of one member trained with several seeds and equal parameters."""

    scores: tuple[float, ...]
    mean: float
    spread: float  # standard deviation over seeds (n - 1)
    changed: float  # mean share of rows (multi-label: of labels) that differ, over pairs of seeds


def compare(
    ids: np.ndarray,
    labels: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    evaluation: Evaluation,
) -> Comparison:
    """before, after: cross-fitted outputs, (N,) labels for a metric of labels, (N, C) probabilities otherwise."""
    difference, metric = paired(labels, before, after, evaluation), evaluation.metric
    if metric.target == "regression":
        return Comparison(difference, ())
    old, new = (default_labels(output, metric.target) for output in (before, after))
    if metric.target == "multi":
        rows = np.flatnonzero((old != new).any(1))
        return Comparison(difference, tuple((str(ids[n]), old[n], new[n]) for n in rows))
    return Comparison(difference, tuple((str(ids[n]), int(old[n]), int(new[n])) for n in np.flatnonzero(old != new)))


def seed_noise(labels: np.ndarray, outputs: Sequence[np.ndarray], metric: Metric, classes: int) -> SeedNoise:
    """outputs: one per seed, (N,) labels for a metric of labels, (N, C) probabilities otherwise."""
    if len(outputs) < 2:
        raise UserError(f"a spread over seeds needs two seeds or more, found {len(outputs)}")
    scores = [metric.evaluate(labels, output, classes) for output in outputs]
    predicted = [
        output if metric.target == "regression" else default_labels(output, metric.target) for output in outputs
    ]
    pairs = [(a != b).mean() for n, a in enumerate(predicted) for b in predicted[n + 1 :]]
    return SeedNoise(
        tuple(map(float, scores)), float(np.mean(scores)), float(np.std(scores, ddof=1)), float(np.mean(pairs))
    )


def seed_noise_of_difference(
    before: Mapping[str, float],
    after: Mapping[str, float],
    spreads: Mapping[str, float],
    retrained: Collection[str] = (),
) -> float:
    """Standard deviation of the difference of two blends' scores over the training seeds of their members.

    before, after: member -> weight.  spreads: member -> standard deviation of its own score over seeds; unmeasured
    members count as 0.  retrained: members whose fold models differ between the two blends.
    To first order a blend's score changes with a member's score by its weight; the effect of shared fold models cancels.
    """
    old_weights, new_weights = (
        {name: weight / (sum(weights.values()) or 1.0) for name, weight in weights.items()}
        for weights in (before, after)
    )
    variance = 0.0
    for name, spread in spreads.items():
        a, b = old_weights.get(name, 0.0), new_weights.get(name, 0.0)
        variance += spread**2 * (a**2 + b**2 if name in retrained else (b - a) ** 2)
    return math.sqrt(variance)
