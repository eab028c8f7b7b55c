"""TTA policies: weights over views, fitted per member on out-of-fold rows.

Greedy selection by the log likelihood of calibrated probabilities (Molchanov et al., "Greedy Policy Search", UAI 2020).
Averaging lowers the confidence of any prediction, which alone raises the likelihood of an overconfident member. After
calibration a view is selected only if it adds information.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.calibration import apply_temperature, fit_temperature
from competition.ensemble.greedy import greedy_picks, weights_of
from competition.ensemble.metrics import METRICS, Metric, true_class
from competition.ensemble.mixing import to_mixing_space, to_probabilities, weighted_sum
from competition.ensemble.outputs import OutputCache, identity_view
from competition.ensemble.predictions import ViewPredictions
from competition.ensemble.target_metrics import label_log_likelihoods

RESAMPLES = 200  # bootstrap, for the standard error of a policy fitted by the metric


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The block `policy` of params.yaml."""

    method: str  # identity | mean | greedy
    objective: str  # greedy: log_likelihood | metric
    mixing: str  # mean | geometric | rank: what is averaged
    rounds: int  # greedy picks
    seconds_limit: float  # greedy: inference time of the used views per 1,000 images and fold model; 0 = no limit
    same_below: float  # a view whose probabilities all differ by less than this from another view's is ignored


def fit_policy(
    cache: OutputCache,
    rows: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
    seconds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Fit the policy of one member.  Returns view -> weight; weights are positive and sum to 1.

    cache: of the member's predictions and labels; shared with fits on other rows.  rows: (n,) int, the row numbers to fit on.
    seconds: view -> inference time in seconds per 1,000 images; None = unknown, each view then counts as one second.
    """
    identity = identity_view(cache.predictions)
    if settings.method == "identity":
        return {identity: 1.0}
    names = cache.distinct_views(settings.same_below)
    if settings.method == "mean":
        return dict.fromkeys(names, 1.0 / len(names))
    if settings.method != "greedy":
        raise UserError(f"policy method '{settings.method}' is not known; expected identity, mean or greedy")
    if len(names) == 1:
        return {identity: 1.0}
    cost = np.array([seconds[name] if seconds else 1.0 for name in names])

    def affordable(picks: list[int]) -> np.ndarray:
        used = np.isin(np.arange(len(cost)), picks)
        return used | (cost[used].sum() + cost <= settings.seconds_limit)

    search = _search(cache, names, rows, metric, settings)
    allowed = affordable if settings.seconds_limit else None
    picks = greedy_picks(search.values, search.labels, search.metric, settings.rounds, settings.mixing, allowed)
    if not picks:
        raise UserError(
            f"policy.seconds_limit {settings.seconds_limit:g} allows no view; the cheapest takes {cost.min():.3g} s for "
            "1,000 images; expected at least that, or 0 for no limit"
        )
    weights = weights_of(picks, len(names))
    if not _is_gain(search, weights, settings):
        return {identity: 1.0}
    return {name: float(w) for name, w in zip(names, weights, strict=True) if w}


def rejected_views(
    predictions: ViewPredictions,
    labels: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
    policy: Mapping[str, float],
) -> dict[str, str]:
    """Views that the policy does not use -> the reason: "no-op", "harmful" or "adds nothing".

    harmful: the mean of this view and the identity view scores lower than the identity view alone, by the search's metric.
    """
    if settings.method == "identity":
        return {}
    cache = OutputCache(predictions, settings.mixing, labels)
    names = cache.distinct_views(settings.same_below)
    reasons = {name: "no-op" for name in predictions.views if name not in names}
    unused = [name for name in names[1:] if name not in policy]
    if unused:
        search = _search(cache, names, np.arange(len(labels)), metric, settings)
        one_hot = np.eye(len(names))
        identity_score = search.score(one_hot[0], settings.mixing)
        for name in unused:
            score = search.score((one_hot[0] + one_hot[names.index(name)]) / 2, settings.mixing)
            reasons[name] = "harmful" if score < identity_score else "adds nothing"
    if names[0] not in policy:
        reasons[names[0]] = "adds nothing"
    return reasons


@dataclass(frozen=True)
class _Search:
    """Inputs of a greedy search.  values: (V, n, C) in mixing space, the identity view first.  labels: (n,) int.

    For the likelihood of an arithmetic mean C is 1: only the probability of the true class counts.
    """

    values: np.ndarray
    labels: np.ndarray
    metric: Metric

    def mixed(self, weights: np.ndarray, mixing: str) -> np.ndarray:
        mixed = weighted_sum(self.values, weights)
        return mixed if self.values.shape[2] == 1 else to_probabilities(mixed, mixing)

    def score(self, weights: np.ndarray, mixing: str) -> float:
        return self.metric.evaluate(self.labels, self.mixed(weights, mixing))


def _search(
    cache: OutputCache,
    names: list[str],
    rows: np.ndarray,
    metric: Metric,
    settings: PolicySettings,
) -> _Search:
    if settings.objective == "log_likelihood" and settings.mixing == "rank":
        raise UserError(
            "policy.objective log_likelihood does not work with policy.mixing rank; expected policy.objective metric, or "
            "policy.mixing mean or geometric"
        )
    if settings.objective == "log_likelihood" and settings.mixing == "mean":
        train = np.isin(np.arange(len(cache.labels)), rows)
        step = cache.identity_view().temperature_step(train)
        true_probs = np.stack([cache.with_policy({name: 1.0}).calibrated_true_probs(step)[rows] for name in names])
        return _Search(true_probs[:, :, None], np.zeros(len(rows), np.int64), METRICS["log_loss"])
    probs, labels = np.stack([cache.predictions.view(name, rows) for name in names]), cache.labels[rows]
    if settings.objective == "log_likelihood":
        independent = metric.target == "multi"
        probs = apply_temperature(probs, fit_temperature(probs[0], labels), independent)
        metric = METRICS["multilabel_log_loss" if independent else "log_loss"]
    elif settings.objective != "metric":
        raise UserError(f"policy objective '{settings.objective}' is not known; expected log_likelihood or metric")
    return _Search(to_mixing_space(probs, settings.mixing), labels, metric)


def _is_gain(search: _Search, weights: np.ndarray, settings: PolicySettings) -> bool:
    """Return True if the policy is better than the identity view by more than the standard error."""
    identity, mixed = (search.mixed(w, settings.mixing) for w in (np.eye(len(weights))[0], weights))
    if settings.objective == "log_likelihood":
        if search.metric.target == "multi":
            gains = label_log_likelihoods(search.labels, mixed) - label_log_likelihoods(search.labels, identity)
            gains = gains.mean(1)
        else:
            gains = np.log(true_class(search.labels, mixed)) - np.log(true_class(search.labels, identity))
        return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))
    identity, mixed = search.metric.output_of(identity), search.metric.output_of(mixed)
    classes = search.values.shape[2]
    return paired(search.labels, identity, mixed, Evaluation(search.metric, classes, RESAMPLES, seed=0)).is_better
