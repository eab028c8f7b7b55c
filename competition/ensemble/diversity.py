"""How different the members are, and what each is worth to the blend: two clones agree all_gather and bring nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from competition.ensemble.blend import Blend
from competition.ensemble.metrics import Metric


@dataclass(frozen=True)
class Diversity:
    """In the order of `names`."""

    names: tuple[str, ...]
    agreement: np.ndarray  # (M, M) share of rows with the same most probable class
    error_correlation: np.ndarray  # (M, M) Pearson correlation of "is wrong"; nan for a member that is never wrong
    score: np.ndarray  # (M,) alone
    worth: np.ndarray  # (M,) score of the blend minus its score without the member, the other weights scaled up


def diversity(members: Mapping[str, np.ndarray], labels: np.ndarray, blend: Blend, metric: Metric) -> Diversity:
    """members: name -> (N, C), as they enter the blend.  labels: (N,) int."""
    names = tuple(sorted(members))
    given = np.stack([members[name].argmax(1) for name in names])
    whole = metric.score(labels, blend.mix(members))
    return Diversity(
        names,
        np.array([[(a == b).mean() for b in given] for a in given]),
        _correlation((given != labels).astype(np.float64)),
        np.array([metric.score(labels, members[name]) for name in names]),
        np.array([whole - _without(name, members, labels, blend, metric, whole) for name in names]),
    )


def _without(
    name: str, members: Mapping[str, np.ndarray], labels: np.ndarray, blend: Blend, metric: Metric, whole: float
) -> float:
    rest = {other: weight for other, weight in blend.weights.items() if other != name and weight}
    if len(rest) == len([w for w in blend.weights.values() if w]):
        return whole  # it had no weight
    if not rest:
        return float("nan")  # nothing is left to compare with
    scale = sum(blend.weights.values()) / sum(rest.values())
    less = replace(blend, weights={other: weight * scale for other, weight in rest.items()})
    return metric.score(labels, less.mix(members))


def _correlation(wrong: np.ndarray) -> np.ndarray:
    """wrong: (M, N).  Returns (M, M)."""
    centred = wrong - wrong.mean(1, keepdims=True)
    spread = np.sqrt((centred**2).sum(1))
    scale = np.where(spread > 0, spread, np.nan)
    return centred @ centred.T / np.outer(scale, scale)
