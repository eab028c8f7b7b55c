"""Is it better than noise? Two results on the same rows, and what another seed alone would have changed."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.bootstrap import Difference, hard, paired
from competition.ensemble.metrics import Metric


@dataclass(frozen=True)
class Comparison:
    difference: Difference
    changed: tuple[tuple[str, int, int], ...]  # id, label before, label after


@dataclass(frozen=True)
class SeedNoise:
    """Scores of one member trained with several seeds, nothing else changed."""

    scores: tuple[float, ...]
    mean: float
    spread: float  # standard deviation over seeds (n - 1)
    changed: float  # mean share of rows with another label, over pairs of seeds


def compare(
    ids: np.ndarray,
    labels: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    metric: Metric,
    classes: int,
    resamples: int,
    seed: int,
) -> Comparison:
    """before, after: (N,) labels for a metric of labels, (N, C) probabilities otherwise; best of all cross-fitted."""
    difference = paired(labels, before, after, metric, classes, resamples, seed)
    return Comparison(difference, changed_rows(ids, hard(before), hard(after)))


def changed_rows(ids: np.ndarray, before: np.ndarray, after: np.ndarray) -> tuple[tuple[str, int, int], ...]:
    """(id, label before, label after) of every row that differs; for test rows, whose truth nobody knows, as well."""
    return tuple((str(ids[n]), int(before[n]), int(after[n])) for n in np.flatnonzero(before != after))


def seed_noise(labels: np.ndarray, outputs: Sequence[np.ndarray], metric: Metric, classes: int) -> SeedNoise:
    """outputs: one per seed, (N,) labels for a metric of labels, (N, C) probabilities otherwise."""
    if len(outputs) < 2:
        raise UserError(f"a spread needs two seeds or more, found {len(outputs)}")
    scores = [
        metric.score_labels(labels, out, classes) if metric.from_counts else metric.score(labels, out)
        for out in outputs
    ]
    given = [hard(out) for out in outputs]
    pairs = [(a != b).mean() for n, a in enumerate(given) for b in given[n + 1 :]]
    return SeedNoise(
        tuple(map(float, scores)), float(np.mean(scores)), float(np.std(scores, ddof=1)), float(np.mean(pairs))
    )


def seed_noise_of_difference(
    before: Mapping[str, float],
    after: Mapping[str, float],
    spreads: Mapping[str, float],
    retrained: Collection[str] = (),
) -> float:
    """Standard deviation of the difference of two blends' scores if all their members were trained with other seeds.

    before, after: member -> weight.  spreads: member -> standard deviation of its own score over seeds; a member that
    was not studied counts as if seeds changed nothing.  retrained: members of which the two have different fold models.
    To first order a blend moves with a member by its weight: what both take from the same fold models cancels.
    """
    one, two = (
        {name: weight / (sum(weights.values()) or 1.0) for name, weight in weights.items()}
        for weights in (before, after)
    )
    moved = 0.0
    for name, spread in spreads.items():
        a, b = one.get(name, 0.0), two.get(name, 0.0)
        moved += spread**2 * (a**2 + b**2 if name in retrained else (b - a) ** 2)
    return math.sqrt(moved)
