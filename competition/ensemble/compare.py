"""Compare results on the same rows: two blends, a member trained with several seeds, the members of one blend."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.chain import Chain, MemberViews
from competition.ensemble.metrics import Metric, TargetKind, default_labels
from competition.ensemble.mixing import mix
from competition.ensemble.tta_policy import mix_views

Label = int | np.ndarray  # a class number, or the (C,) bool labels of a multi-label row


@dataclass(frozen=True)
class SeedNoise:
    """Scores of one member trained with several seeds and equal parameters."""

    scores: tuple[float, ...]
    mean: float
    spread: float  # standard deviation over seeds (n - 1)
    changed: float  # mean share of rows (multi-label: of labels) that differ, over pairs of seeds


def changed_rows(
    ids: np.ndarray, before: np.ndarray, after: np.ndarray, target: TargetKind
) -> list[tuple[str, Label, Label]]:
    """(id, label before, label after) of each row whose label changed; none of a regression.

    before, after: outputs, (N,) labels for a metric of labels, (N, C) probabilities otherwise.
    """
    if target == "regression":
        return []
    old, new = (default_labels(output, target) for output in (before, after))
    changed = np.flatnonzero((old != new).reshape(len(old), -1).any(1))
    return [(str(ids[n]), old[n], new[n]) for n in changed]


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


@dataclass(frozen=True)
class Diversity:
    """All values are in the order of `names`, and all scores with the decision rule of the blend."""

    names: tuple[str, ...]
    # (M, M) share of rows with the same most probable class (multi-label: share of equal labels; regression: correlation of the values)
    agreement: list[list[float]]
    score: list[float]  # of the member alone, greater is better
    # Score of the blend minus its score without the member, the other weights rescaled: 0 without a weight, None if alone.
    worth: list[float | None]


def diversity(chain: Chain, members: MemberViews, labels: np.ndarray, rows: np.ndarray, metric: Metric) -> Diversity:
    """Diversity on some rows of the members as they enter the blend, of which never all are in memory.

    Scores are those of the most probable class: the decision rule is fitted to the whole blend, and would favour it.
    labels: (n,) int, or as the metric's target says.  rows: (n,) int, the row numbers.
    """
    names, used, weights = tuple(sorted(members)), chain.blend.used, chain.blend.weights

    def probs_of(name: str) -> np.ndarray:
        return mix_views(members[name], chain.policies[name], rows)

    def score_of(blended: Sequence[str]) -> float:
        """The score of a blend of these members alone, whose weights keep their sum and their ratios."""
        scale = sum(weights.values()) / sum(weights[name] for name in blended)
        parts, scaled = map(probs_of, blended), [weights[name] * scale for name in blended]
        return undecided_score(mix(parts, scaled, chain.blend.mixing))

    def undecided_score(probs: np.ndarray) -> float:
        return metric.evaluate(labels, metric.output_of(probs), probs.shape[1])

    if metric.target == "regression":
        values = np.stack([probs_of(name)[:, 0].astype(np.float64) for name in names])
        agreement = np.nan_to_num(np.atleast_2d(np.corrcoef(values)))
    else:
        predicted = [default_labels(probs_of(name), metric.target) for name in names]
        agreement = np.array([[(a == b).mean() for b in predicted] for a in predicted])
    blend_score, worth = score_of(used), list[float | None]()
    for name in names:
        rest = [other for other in used if other != name]
        worth.append(0.0 if name not in used else blend_score - score_of(rest) if rest else None)
    scores = [undecided_score(probs_of(name)) for name in names]
    return Diversity(names, agreement.tolist(), scores, worth)
