"""Is it better than noise? Two results on the same rows, and what another seed alone would have changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from competition.ensemble.bootstrap import Difference, hard, paired
from competition.ensemble.metrics import Metric
from competition.errors import Refusal


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
        raise Refusal(f"a spread needs two seeds or more, found {len(outputs)}")
    scores = [
        metric.score_labels(labels, out, classes) if metric.of_tally else metric.score(labels, out) for out in outputs
    ]
    given = [hard(out) for out in outputs]
    pairs = [(a != b).mean() for n, a in enumerate(given) for b in given[n + 1 :]]
    return SeedNoise(
        tuple(map(float, scores)), float(np.mean(scores)), float(np.std(scores, ddof=1)), float(np.mean(pairs))
    )


def gain_in_seed_noise(gain: float, noise: SeedNoise) -> float:
    """A gain in units of what two runs differ by for their seed alone (sqrt 2 spreads). Below 1: call it noise."""
    return gain / (np.sqrt(2) * noise.spread) if noise.spread > 0 else float(np.copysign(np.inf, gain) if gain else 0)
