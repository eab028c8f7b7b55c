"""Weights over views, per member, chosen on out-of-fold rows: test-time augmentation that has to earn its place.

Greedy selection by log likelihood of calibrated probabilities (Molchanov et al., "Greedy Policy Search", UAI 2020):
averaging makes any prediction less sure, which alone raises the likelihood of a member that is too sure; calibrated
first, a view must bring information.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.ensemble.calibration import apply_temperature, fit_temperature
from competition.ensemble.greedy import greedy_picks, weights_of
from competition.ensemble.metrics import METRICS, Metric, true_class
from competition.ensemble.predictions import ViewPredictions
from competition.errors import Refusal

PLAIN = "identity"


@dataclass(frozen=True, slots=True)
class PolicySettings:
    method: str  # identity | mean | greedy
    by: str  # greedy: log_likelihood | metric
    rounds: int  # greedy picks
    cost_limit: float  # of the views used, in passes over the plain images; 0 = no limit
    same_below: float  # a view whose probabilities differ from another's by less than this everywhere is no view


def mean_of_views(views: ViewPredictions, policy: Mapping[str, float]) -> np.ndarray:
    """(N, C) float32: the mean over the views of a policy (name -> weight). The views are found by name."""
    if len(policy) == 1:
        return views.view(*policy)
    total = np.zeros((len(views.ids), views.probs.shape[2]), np.float32)
    for name, weight in policy.items():
        total += np.float32(weight) * views.view(name)
    return total / total.sum(1, keepdims=True)


def fit_policy(
    views: ViewPredictions,
    labels: np.ndarray,
    rows: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
    seconds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """View's name -> weight, positive, sum 1.  labels: (N,) int.  rows: the row numbers to choose on.

    seconds: what one pass of each view costs; None = all the same. The first view is the plain one unless one is
    named "identity" (a foreign member has one view, of whatever name).
    """
    plain = PLAIN if PLAIN in views.views else views.views[0]
    if settings.method == "identity":
        return {plain: 1.0}
    different = views_that_differ(views, plain, settings.same_below)
    if settings.method == "mean":
        return dict.fromkeys(different, 1.0 / len(different))
    if settings.method != "greedy":
        raise Refusal(f"policy method '{settings.method}' is not known; expected identity, mean or greedy")
    if len(different) == 1:
        return {plain: 1.0}
    cost = np.array([seconds[name] / seconds[plain] if seconds else 1.0 for name in different])

    def affordable(picks: list[int]) -> np.ndarray:
        used = np.isin(np.arange(len(cost)), picks)
        return used | (cost[used].sum() + cost <= settings.cost_limit)

    parts, labels = np.stack([views.view(name)[rows] for name in different]), labels[rows]
    if settings.by == "log_likelihood":
        parts = apply_temperature(parts, fit_temperature(parts[0], labels))
        metric = METRICS["log_loss"]
    elif settings.by != "metric":
        raise Refusal(f"policy by '{settings.by}' is not known; expected log_likelihood or metric")
    picks = greedy_picks(parts, labels, metric, settings.rounds, allowed=affordable if settings.cost_limit else None)
    if not picks:
        raise Refusal(f"policy cost limit {settings.cost_limit} allows no view; expected 1 or more, or 0 for no limit")
    weights = weights_of(picks, len(different))
    if settings.by == "log_likelihood" and not _is_gain(parts, weights, labels):
        return {plain: 1.0}
    return {name: float(w) for name, w in zip(different, weights, strict=True) if w}


def _is_gain(parts: np.ndarray, weights: np.ndarray, labels: np.ndarray) -> bool:
    """The views raise the mean log likelihood over the plain one by more than the standard error of the rows."""
    own = true_class(labels, parts)  # (V, N)
    gains = np.log(weights @ own) - np.log(own[0])
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def views_that_differ(views: ViewPredictions, plain: str, same_below: float) -> list[str]:
    """`plain` first, then every view that says something no earlier one says: five equal passes are one view."""

    def differ(a: np.ndarray, b: np.ndarray) -> bool:
        few = slice(64)  # nearly always enough to tell
        return bool(np.abs(a[few] - b[few]).max() >= same_below or np.abs(a - b).max() >= same_below)

    kept: dict[str, np.ndarray] = {}
    for name in sorted(views.views, key=lambda v: v != plain):
        probs = views.view(name)
        if all(differ(probs, other) for other in kept.values()):
            kept[name] = probs
    return list(kept)
