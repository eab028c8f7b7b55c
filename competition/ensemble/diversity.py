"""Diversity of the members, and the contribution of each to the blend. Two identical members contribute nothing."""

from dataclasses import dataclass

import numpy as np

from competition.ensemble.chain import Chain, MemberViews
from competition.ensemble.metrics import Metric, default_labels
from competition.ensemble.mixing import mix
from competition.ensemble.predictions import mix_views


@dataclass(frozen=True)
class Diversity:
    """All arrays are in the order of `names`."""

    names: tuple[str, ...]
    agreement: np.ndarray  # (M, M) share of rows with the same most probable class (multi-label: share of equal labels;
    # regression: correlation of the values)
    error_correlation: np.ndarray  # (M, M) Pearson correlation of the errors; nan for a member that is never wrong
    score: np.ndarray  # (M,) of the member alone
    worth: np.ndarray  # (M,) score of the blend minus its score without the member, the other weights rescaled


def diversity(chain: Chain, members: MemberViews, labels: np.ndarray, rows: np.ndarray, metric: Metric) -> Diversity:
    """Diversity on some rows of the members as they enter the blend, of which never all are in memory.

    labels: (n,) int, or as the metric's target says.  rows: (n,) int, the row numbers.
    """
    names, weights = tuple(sorted(members)), chain.blend.weights

    def probs_of(name: str) -> np.ndarray:
        return mix_views(members[name], chain.policies[name], rows)

    def score_without(removed: str) -> float:
        """Score of the blend without one member; nan if no other member has a weight."""
        rest = [name for name in chain.blend.used if name != removed]
        if not rest:
            return float("nan")
        scale = sum(weights.values()) / sum(weights[name] for name in rest)
        return metric.evaluate(labels, mix(map(probs_of, rest), [weights[n] * scale for n in rest], chain.blend.mixing))

    if metric.target == "regression":
        predicted = np.stack([probs_of(name)[:, 0].astype(np.float64) for name in names])
        agreement, errors = _correlation(predicted), predicted - labels
    else:  # of a multi-label competition, every cell of (N, C) counts as a row
        predicted = np.stack([default_labels(probs_of(name), metric.target).ravel() for name in names])
        agreement = np.array([[(a == b).mean() for b in predicted] for a in predicted])
        errors = (predicted != labels.ravel()).astype(np.float64)
    used = chain.blend.used
    blend_score = metric.evaluate(labels, mix(map(probs_of, used), map(weights.__getitem__, used), chain.blend.mixing))
    scores = [metric.evaluate(labels, probs_of(name)) for name in names]
    worth = [blend_score - score_without(name) if weights[name] else 0.0 for name in names]
    return Diversity(names, agreement, _correlation(errors), np.array(scores), np.array(worth))


def _correlation(values: np.ndarray) -> np.ndarray:
    """values: (M, N).  Returns (M, M)."""
    with np.errstate(divide="ignore", invalid="ignore"):  # nan for a member without a spread
        return np.atleast_2d(np.corrcoef(values))
