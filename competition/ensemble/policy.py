"""Weights over views, per member, chosen on out-of-fold rows: test-time augmentation that has to earn its place.

Greedy selection by log likelihood of calibrated probabilities (Molchanov et al., "Greedy Policy Search", UAI 2020):
averaging makes any prediction less sure, which alone raises the likelihood of a member that is too sure; calibrated
first, a view must bring information.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.bootstrap import paired
from competition.ensemble.calibration import apply_temperature, fit_temperature
from competition.ensemble.greedy import greedy_picks, weights_of
from competition.ensemble.metrics import METRICS, Metric, true_class
from competition.ensemble.mixing import to_mixing_space, to_probabilities, weighted_sum
from competition.ensemble.outputs import OutputCache, plain_view
from competition.ensemble.predictions import ViewPredictions

RESAMPLES = 200  # behind the standard error of a policy chosen by the metric


@dataclass(frozen=True, slots=True)
class PolicySettings:
    method: str  # identity | mean | greedy
    by: str  # greedy: log_likelihood | metric
    mixing: str  # mean | geometric | rank: what is averaged
    rounds: int  # greedy picks
    seconds_limit: float  # greedy: of the views used, for 1,000 images and one fold model; 0 = no limit
    same_below: float  # a view whose probabilities differ from another's by less than this all_gather is no view


def fit_policy(
    views: ViewPredictions,
    labels: np.ndarray,
    rows: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
    seconds: Mapping[str, float] | None = None,
    cache: OutputCache | None = None,
) -> dict[str, float]:
    """View's name -> weight, positive, sum 1.  labels: (N,) int.  rows: the row numbers to choose on.

    seconds: what each view costs for 1,000 images; None = not known, each then counts as one second.
    cache: results of this member that fits on other rows share.
    """
    plain, cache = plain_view(views), cache or OutputCache(views, settings.mixing, labels)
    if settings.method == "identity":
        return {plain: 1.0}
    names = cache.views_that_differ(settings.same_below)
    if settings.method == "mean":
        return dict.fromkeys(names, 1.0 / len(names))
    if settings.method != "greedy":
        raise UserError(f"policy method '{settings.method}' is not known; expected identity, mean or greedy")
    if len(names) == 1:
        return {plain: 1.0}
    cost = np.array([seconds[name] if seconds else 1.0 for name in names])

    def affordable(picks: list[int]) -> np.ndarray:
        used = np.isin(np.arange(len(cost)), picks)
        return used | (cost[used].sum() + cost <= settings.seconds_limit)

    search = _search(cache, names, labels, rows, metric, settings)
    allowed = affordable if settings.seconds_limit else None
    picks = greedy_picks(
        search.parts, search.labels, search.metric, settings.rounds, allowed=allowed, mixing=settings.mixing
    )
    if not picks:
        raise UserError(
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
    cache = OutputCache(views, settings.mixing, labels)
    names = cache.views_that_differ(settings.same_below)
    why = {name: "no-op" for name in views.views if name not in names}
    left = [name for name in names[1:] if name not in policy]
    if left:
        search = _search(cache, names, labels, np.arange(len(labels)), metric, settings)
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
    """What a greedy search goes by.  parts: (V, n, C), the plain view first.  labels: (n,).

    By the likelihood of an arithmetic mean, C is 1: nothing but the probability of the row's own class counts.
    """

    parts: np.ndarray
    labels: np.ndarray
    metric: Metric

    def mixed(self, weights: np.ndarray, mixing: str) -> np.ndarray:
        mixed = weighted_sum(self.parts, weights)
        return mixed if self.parts.shape[2] == 1 else to_probabilities(mixed, mixing)

    def score(self, weights: np.ndarray, mixing: str) -> float:
        return self.metric.score(self.labels, self.mixed(weights, mixing))


def _search(
    cache: OutputCache,
    names: list[str],
    labels: np.ndarray,
    rows: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
) -> _Search:
    if settings.by == "log_likelihood" and settings.mixing == "rank":
        raise UserError(
            "a mean of ranks has no likelihood; expected policy.by metric, or policy.mixing mean or geometric"
        )
    if settings.by == "log_likelihood" and settings.mixing == "mean":
        train = np.isin(np.arange(len(labels)), rows)
        step = cache.plain().temperature_step(train)
        own = np.stack([cache.under({name: 1.0}).calibrated_own(step)[rows] for name in names])
        return _Search(own[:, :, None], np.zeros(len(rows), np.int64), METRICS["log_loss"])
    probs, labels = np.stack([cache.views.view(name, rows) for name in names]), labels[rows]
    if settings.by == "log_likelihood":
        probs = apply_temperature(probs, fit_temperature(probs[0], labels))
        metric = METRICS["log_loss"]
    elif settings.by != "metric":
        raise UserError(f"policy by '{settings.by}' is not known; expected log_likelihood or metric")
    return _Search(to_mixing_space(probs, settings.mixing), labels, metric)


def _is_gain(search: _Search, weights: np.ndarray, settings: PolicySettings) -> bool:
    """The views beat the plain one by more than the standard error of the rows."""
    plain, mixed = (search.mixed(w, settings.mixing) for w in (np.eye(len(weights))[0], weights))
    if settings.by == "log_likelihood":
        gains = np.log(true_class(search.labels, mixed)) - np.log(true_class(search.labels, plain))
        return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))
    if search.metric.from_counts is not None:
        plain, mixed = plain.argmax(1), mixed.argmax(1)
    classes = search.parts.shape[2]
    return paired(search.labels, plain, mixed, search.metric, classes, RESAMPLES, seed=0).is_better
