"""Diversity of the members, and the contribution of each to the blend. Two identical members contribute nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from competition.ensemble.blend import Blend
from competition.ensemble.metrics import Metric, default_labels


@dataclass(frozen=True)
class Diversity:
    """All arrays are in the order of `names`."""

    names: tuple[str, ...]
    agreement: np.ndarray  # (M, M) share of rows with the same most probable class (multi-label: share of equal labels;
    # regression: correlation of the values)
    error_correlation: np.ndarray  # (M, M) Pearson correlation of the errors; nan for a member that is never wrong
    score: np.ndarray  # (M,) of the member alone
    worth: np.ndarray  # (M,) score of the blend minus its score without the member, the other weights rescaled


def diversity(members: Mapping[str, np.ndarray], labels: np.ndarray, blend: Blend, metric: Metric) -> Diversity:
    """members: name -> (N, C), as they enter the blend.  labels: (N,) int, or as the metric's target says."""
    names = tuple(sorted(members))
    if metric.target == "regression":
        predicted = np.stack([members[name][:, 0].astype(np.float64) for name in names])
        agreement, errors = _correlation(predicted), predicted - labels
    else:  # of a multi-label competition, every cell of (N, C) counts as a row
        predicted = np.stack([default_labels(members[name], metric.target).ravel() for name in names])
        agreement = np.array([[(a == b).mean() for b in predicted] for a in predicted])
        errors = (predicted != labels.ravel()).astype(np.float64)
    blend_score = metric.evaluate(labels, blend.mix(members))
    return Diversity(
        names,
        agreement,
        _correlation(errors),
        np.array([metric.evaluate(labels, members[name]) for name in names]),
        np.array([blend_score - _score_without(name, members, labels, blend, metric, blend_score) for name in names]),
    )


def _score_without(
    name: str, members: Mapping[str, np.ndarray], labels: np.ndarray, blend: Blend, metric: Metric, blend_score: float
) -> float:
    """Score of the blend without one member."""
    rest = {other: weight for other, weight in blend.weights.items() if other != name and weight}
    if len(rest) == len([w for w in blend.weights.values() if w]):
        return blend_score  # the member had no weight
    if not rest:
        return float("nan")  # undefined: no other member has a weight
    scale = sum(blend.weights.values()) / sum(rest.values())
    reduced = replace(blend, weights={other: weight * scale for other, weight in rest.items()})
    return metric.evaluate(labels, reduced.mix(members))


def _correlation(values: np.ndarray) -> np.ndarray:
    """values: (M, N).  Returns (M, M)."""
    with np.errstate(divide="ignore", invalid="ignore"):  # nan for a member without a spread
        return np.atleast_2d(np.corrcoef(values))
