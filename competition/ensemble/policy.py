"""Weights over views, per member, chosen on out-of-fold rows: test-time augmentation that has to earn its place.

Greedy selection by log likelihood of calibrated probabilities (Molchanov et al., "Greedy Policy Search", UAI 2020):
averaging makes any prediction less sure, which alone raises the likelihood of a member that is too sure; calibrated
first, a view must bring information.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.ensemble.bootstrap import paired
from competition.ensemble.calibration import apply_temperature, fit_temperature
from competition.ensemble.greedy import greedy_picks, weights_of
from competition.ensemble.metrics import METRICS, Metric, true_class
from competition.ensemble.mixing import finish, mix, prepare, weigh
from competition.ensemble.predictions import ViewPredictions
from competition.errors import Refusal

PLAIN = "identity"
RESAMPLES = 200  # behind the standard error of a policy chosen by the metric


@dataclass(frozen=True, slots=True)
class PolicySettings:
    method: str  # identity | mean | greedy
    by: str  # greedy: log_likelihood | metric
    mixing: str  # mean | geometric | rank: what is averaged
    rounds: int  # greedy picks
    seconds_limit: float  # greedy: of the views used, for 1,000 images and one fold model; 0 = no limit
    same_below: float  # a view whose probabilities differ from another's by less than this everywhere is no view


def mix_views(
    views: ViewPredictions, policy: Mapping[str, float], mixing: str, rows: np.ndarray | None = None
) -> np.ndarray:
    """(n, C) float32: the mean over the views of a policy (name -> weight), for the row numbers `rows` or all.

    The views are found by name. One view alone is given as it is.
    """
    parts = [views.view(name) if rows is None else views.view(name)[rows] for name in policy]
    return parts[0] if len(parts) == 1 else mix(np.stack(parts), np.array(list(policy.values())), mixing)


def plain_view(views: ViewPredictions) -> str:
    """The first view is the plain one unless one is named "identity" (a foreign member's have any names)."""
    return PLAIN if PLAIN in views.views else views.views[0]


def fit_policy(
    views: ViewPredictions,
    labels: np.ndarray,
    rows: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
    seconds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """View's name -> weight, positive, sum 1.  labels: (N,) int.  rows: the row numbers to choose on.

    seconds: what each view costs for 1,000 images; None = not known, each then counts as one second.
    """
    plain = plain_view(views)
    if settings.method == "identity":
        return {plain: 1.0}
    names = views_that_differ(views, plain, settings.same_below)
    if settings.method == "mean":
        return dict.fromkeys(names, 1.0 / len(names))
    if settings.method != "greedy":
        raise Refusal(f"policy method '{settings.method}' is not known; expected identity, mean or greedy")
    if len(names) == 1:
        return {plain: 1.0}
    cost = np.array([seconds[name] if seconds else 1.0 for name in names])

    def affordable(picks: list[int]) -> np.ndarray:
        used = np.isin(np.arange(len(cost)), picks)
        return used | (cost[used].sum() + cost <= settings.seconds_limit)

    search = _search(views, names, labels, rows, metric, settings)
    allowed = affordable if settings.seconds_limit else None
    picks = greedy_picks(
        search.parts, search.labels, search.metric, settings.rounds, allowed=allowed, mixing=settings.mixing
    )
    if not picks:
        raise Refusal(
            f"policy.seconds_limit {settings.seconds_limit:g} allows no view; the cheapest takes {cost.min():.3g} s for "
            "1,000 images; expected at least that, or 0 for no limit"
        )
    weights = weights_of(picks, len(names))
    if not _is_gain(search, weights, settings):
        return {plain: 1.0}
    return {name: float(w) for name, w in zip(names, weights, strict=True) if w}


def refused_views(
    views: ViewPredictions, labels: np.ndarray, metric: Metric, settings: PolicySettings, policy: Mapping[str, float]
) -> dict[str, str]:
    """Every offered view that the policy left out -> why: "no-op", "harmful" or "adds nothing".

    harmful: half and half with the plain view it is worse than the plain view alone, by what the search goes by.
    """
    if settings.method == "identity":
        return {}
    names = views_that_differ(views, plain_view(views), settings.same_below)
    why = {name: "no-op" for name in views.views if name not in names}
    left = [name for name in names[1:] if name not in policy]
    if left:
        search = _search(views, names, labels, np.arange(len(labels)), metric, settings)
        alone = np.eye(len(names))
        plain = search.score(alone[0], settings.mixing)
        for name in left:
            half = search.score((alone[0] + alone[names.index(name)]) / 2, settings.mixing)
            why[name] = "harmful" if half < plain else "adds nothing"
    if names[0] not in policy:
        why[names[0]] = "adds nothing"
    return why


@dataclass(frozen=True)
class _Search:
    """What a greedy search goes by.  parts: (V, n, C), the plain view first.  labels: (n,)."""

    parts: np.ndarray
    labels: np.ndarray
    metric: Metric

    def score(self, weights: np.ndarray, mixing: str) -> float:
        return self.metric.score(self.labels, finish(weigh(self.parts, weights), mixing))


def _search(
    views: ViewPredictions,
    names: list[str],
    labels: np.ndarray,
    rows: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
) -> _Search:
    probs, labels = np.stack([views.view(name)[rows] for name in names]), labels[rows]
    if settings.by == "log_likelihood" and settings.mixing == "rank":
        raise Refusal(
            "a mean of ranks has no likelihood; expected policy.by metric, or policy.mixing mean or geometric"
        )
    if settings.by == "log_likelihood":
        probs = apply_temperature(probs, fit_temperature(probs[0], labels))
        metric = METRICS["log_loss"]
    elif settings.by != "metric":
        raise Refusal(f"policy by '{settings.by}' is not known; expected log_likelihood or metric")
    return _Search(prepare(probs, settings.mixing), labels, metric)


def _is_gain(search: _Search, weights: np.ndarray, settings: PolicySettings) -> bool:
    """The views beat the plain one by more than the standard error of the rows."""
    plain, mixed = (finish(weigh(search.parts, w), settings.mixing) for w in (np.eye(len(weights))[0], weights))
    if settings.by == "log_likelihood":
        gains = np.log(true_class(search.labels, mixed)) - np.log(true_class(search.labels, plain))
        return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))
    if search.metric.of_tally is not None:
        plain, mixed = plain.argmax(1), mixed.argmax(1)
    classes = search.parts.shape[2]
    return paired(search.labels, plain, mixed, search.metric, classes, RESAMPLES, seed=0).is_better


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
