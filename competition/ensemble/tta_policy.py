"""TTA policies: weights over views, fitted per member on out-of-fold rows.

Greedy selection by the log likelihood of calibrated probabilities (Molchanov et al., "Greedy Policy Search", UAI 2020).
Averaging lowers the confidence of any prediction, which alone raises the likelihood of an overconfident member. After
calibration a view is selected only if it adds information.

Calibration is temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017): p^(1/T), rescaled to
sum 1, T > 1 for an overconfident member. Temperatures come from a geometric grid of 3 % steps. That is finer than the error
of a temperature fitted on a few thousand rows, and fits on overlapping rows then share their work (`ViewCache`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from competition.config.params import Policy
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.greedy_selection import greedy_picks
from competition.ensemble.metrics import METRICS, Metric, true_class
from competition.ensemble.mixing import MEAN_OF, floored_logs, from_log_odds, log_odds, mix
from competition.ensemble.stored_predictions import IDENTITY, ViewPredictions, chunks
from competition.ensemble.target_metrics import mean_log_likelihoods

SAME_BELOW = 1e-6  # a view that changes no probability by more than this is left out
RESAMPLES = 200  # bootstrap, for the standard error of a policy fitted by the metric
SAMPLE = 10_000  # a temperature is fitted on at most this many rows
STEP_RATIO = 1.03  # of the grid; step 0 is temperature 1, exactly
LAST_STEP = 77  # 1.03^77 = 9.74
STRIDES = (12, 3, 1)  # grid steps between the evaluated points, from coarse to fine


class ViewCache:
    """One member's views and labels, and what fits on overlapping sets of rows share: N numbers per view or temperature.

    The log loss of a row at a temperature, its normaliser and the probability of its true class do not depend on the set of
    rows. For a likelihood of classes the probabilities themselves are never all in memory as float32.
    """

    def __init__(self, predictions: ViewPredictions, labels: np.ndarray) -> None:
        """labels: (N,) int, or as the predictions' target says; a fit never uses labels of rows outside it."""
        self.predictions, self.labels = predictions, labels
        self.classes = predictions.probs.shape[2]  # C
        # Sampled without labels or folds, so that held-out labels have no influence.
        self._sample = np.sort(np.random.default_rng(0).permutation(len(labels))[:SAMPLE])
        self._losses: dict[int, np.ndarray] = {}  # step -> (sample,)
        self.true_probs = cache(self._true_probs)  # of the instance, so that it is freed with it

    def temperature_step(self, train: np.ndarray) -> int:
        """Grid step of the identity view's temperature of least log loss on `train`, or a sample of it.  train: (N,) bool."""
        in_train = train[self._sample]

        def losses(steps: Sequence[int]) -> np.ndarray:
            new_steps, parts = [step for step in steps if step not in self._losses], []
            for part in chunks(len(self._sample), self.classes) if new_steps else ():
                rows = self._sample[part]
                logs = floored_logs(self.predictions.view(IDENTITY, rows))
                self.predictions.release()
                true_logs = logs[np.arange(len(rows)), self.labels[rows]].astype(np.float64)
                parts.append([log_norms(logs, t) - true_logs / t for t in (STEP_RATIO**step for step in new_steps)])
            self._losses |= {step: np.concatenate(column) for step, *column in zip(new_steps, *parts, strict=True)}
            return np.array([self._losses[step][in_train].mean(dtype=np.float64) for step in steps])

        return best_step(losses)

    def _true_probs(self, name: str, step: int) -> np.ndarray:
        """(N,) float32: the probability of each row's true class under a view, at a temperature of the grid."""
        view, temperature = self.predictions.views.index(name), STEP_RATIO**step
        probs = self.predictions.probs[np.arange(len(self.labels)), view, self.labels].astype(np.float32)
        if step:
            parts = (self.predictions.view(name, part) for part in chunks(len(probs), self.classes))
            norms = np.concatenate([log_norms(floored_logs(part), temperature) for part in parts])
            probs = np.exp(floored_logs(probs) / np.float32(temperature) - norms)
        self.predictions.release()
        return probs

    @cached_property
    def distinct_views(self) -> list[str]:
        """The identity view, then every view whose probabilities differ from all earlier ones by SAME_BELOW or more."""
        rows, _, classes = self.predictions.probs.shape

        def differ(first: str, second: str) -> bool:
            parts = chunks(rows, classes)  # nearly always the first one is sufficient
            views = ([self.predictions.view(name, part) for name in (first, second)] for part in parts)
            return any(np.abs(a - b).max() >= SAME_BELOW for a, b in views)

        distinct: list[str] = []
        for name in sorted(self.predictions.views, key=lambda view: view != IDENTITY):
            if all(differ(name, other) for other in distinct):
                distinct.append(name)
        self.predictions.release()
        return distinct


def fit_policy(views: ViewCache, rows: np.ndarray, metric: Metric, settings: Policy) -> dict[str, float]:
    """Fit the policy of one member.  Returns view -> weight; weights are positive and sum to 1.

    views: shared with fits on other rows.  rows: (n,) int, the row numbers to fit on.
    """
    if settings.method == "identity":
        return {IDENTITY: 1.0}
    names = views.distinct_views
    if settings.method == "mean":
        return dict.fromkeys(names, 1.0 / len(names))
    if len(names) == 1:
        return {IDENTITY: 1.0}
    search = greedy_inputs(views, names, rows, metric, settings)
    picks = greedy_picks(search.values, search.labels, search.metric, settings.rounds, search.mixing)
    weights = np.bincount(picks, minlength=len(names)) / len(picks)
    if not _is_gain(search, weights, settings):
        return {IDENTITY: 1.0}
    return {name: float(w) for name, w in zip(names, weights, strict=True) if w}


def mix_views(
    predictions: ViewPredictions, policy: Mapping[str, float], rows: np.ndarray | slice | None = None
) -> np.ndarray:
    """(n, C) float32: the weighted mean over the views of a policy (name -> weight; they sum to 1).  rows: None = all.

    A single view is returned unchanged.
    """
    parts = (predictions.view(name, rows) for name in policy)  # one after the other is in memory
    return next(parts) if len(policy) == 1 else mix(parts, policy.values(), MEAN_OF[predictions.target])


@dataclass(frozen=True)
class GreedyInputs:
    """Inputs of a greedy search.  values: (V, n, C), the identity view first.  labels: (n,) int, or as of the metric.

    For the likelihood of classes C is 1: only the probability of the true class counts.
    """

    values: np.ndarray
    labels: np.ndarray
    metric: Metric
    mixing: str


def greedy_inputs(
    views: ViewCache, names: list[str], rows: np.ndarray, metric: Metric, settings: Policy
) -> GreedyInputs:
    # A regression predicts no probabilities, so its metric is the objective.
    by_likelihood = settings.objective == "log_likelihood" and metric.target != "regression"
    if by_likelihood and metric.target == "single":
        step = views.temperature_step(np.isin(np.arange(len(views.labels)), rows))
        true_probs = np.stack([views.true_probs(name, step)[rows] for name in names])
        return GreedyInputs(true_probs[:, :, None], np.zeros(len(rows), np.int64), METRICS["log_loss"], "average")
    values, labels = np.stack([views.predictions.view(name, rows) for name in names]), views.labels[rows]
    if by_likelihood:
        odds = log_odds(values)

        def losses(steps: Sequence[int]) -> np.ndarray:
            calibrated = (from_log_odds(odds[0] / np.float32(STEP_RATIO**step)) for step in steps)
            return np.array([-mean_log_likelihoods(labels, probs).mean() for probs in calibrated])

        step = best_step(losses)
        values = from_log_odds(odds / np.float32(STEP_RATIO**step)) if step else values
        metric = METRICS["multilabel_log_loss"]
    return GreedyInputs(values, labels, metric, MEAN_OF[metric.target])


def _is_gain(search: GreedyInputs, weights: np.ndarray, settings: Policy) -> bool:
    """Return True if the policy is better than the identity view by more than the standard error."""
    labels, metric = search.labels, search.metric
    identity, mixed = (mix(search.values, each, search.mixing) for each in (np.eye(len(weights))[0], weights))
    if metric.target == "regression" or settings.objective == "metric":
        evaluation = Evaluation(metric, search.values.shape[2], RESAMPLES, seed=0)
        return paired(labels, metric.output_of(identity), metric.output_of(mixed), evaluation).is_better
    if metric.target == "multi":
        gains = mean_log_likelihoods(labels, mixed) - mean_log_likelihoods(labels, identity)
    else:
        gains = np.log(true_class(labels, mixed)) - np.log(true_class(labels, identity))
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def best_step(losses: Callable[[Sequence[int]], np.ndarray]) -> int:
    """The grid step of least log loss, by a coarse-to-fine search; the loss is convex in 1 / T.

    losses: S grid steps -> (S,) mean log loss.
    """
    loss_at: dict[int, float] = {}
    best = 0
    for stride, radius in zip(STRIDES, (LAST_STEP, *STRIDES[:-1]), strict=True):
        neighbours = range(best - radius // stride * stride, best + radius + 1, stride)
        steps = [step for step in neighbours if abs(step) <= LAST_STEP and step not in loss_at]
        loss_at |= dict(zip(steps, losses(steps).tolist(), strict=True))
        best = min(loss_at, key=lambda step: (loss_at[step], abs(step)))
    return best


def log_norms(logs: np.ndarray, temperature: float) -> np.ndarray:
    """(n, C) float32 logarithms -> (n,) float32: the log of the sum over classes of p^(1/T)."""
    top = logs.max(1) / np.float32(temperature)
    scaled = logs / np.float32(temperature)
    scaled -= top[:, None]
    return top + np.log(np.exp(scaled, out=scaled).sum(1))
