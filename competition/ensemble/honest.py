"""Scores on rows that took no part in any choice behind them.

Everything chosen on out-of-fold rows - views, temperatures, weights, the decision rule, and which method won - is
chosen again without each fold in turn, and scored on that fold (nested cross-validation; Varma & Simon 2006). The
choice among methods is itself made by cross-fitting inside the remaining folds. A chain fitted without folds {j, k}
serves both as j's inner and k's inner round, so K folds cost 1 + K + K(K-1)/2 fits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from competition.ensemble.bootstrap import Difference, Score, paired, score_with_error
from competition.ensemble.calibration import apply_temperature, fit_temperature
from competition.ensemble.chain import (
    Candidate,
    Chain,
    ChainSettings,
    Members,
    Name,
    Seconds,
    apply_chain,
    fit_candidates,
    member_probs,
)
from competition.ensemble.compare import moved_by_seeds
from competition.ensemble.decision import rules_for
from competition.ensemble.metrics import Metric, metric_named
from competition.ensemble.policy import plain_view
from competition.errors import Refusal

Progress = Callable[[int, int], None]  # fits done, fits in all


@dataclass(frozen=True, slots=True)
class HonestSettings:
    resamples: int  # bootstrap
    seed: int


@dataclass(frozen=True)
class CrossFitted:
    """What chains say on rows they never saw.  probs: (N, C).  labels: (N,).  chosen: fold -> (method, rule)."""

    probs: np.ndarray
    labels: np.ndarray
    chosen: Mapping[int, Name]

    def output(self, metric: Metric) -> np.ndarray:
        return self.labels if metric.of_tally else self.probs


@dataclass(frozen=True)
class Honest:
    """A chain and what may be said of it.  Scores are greater-is-better (Metric.shown for the known number)."""

    chain: Chain
    chosen_on: float  # on the rows it was chosen on: flatters
    honest: Score
    equal: Score  # of equal weights and argmax, cross-fitted likewise
    over_equal: Difference  # against equal weights and argmax, cross-fitted likewise
    over_best: Difference  # against the member that was best on the other folds, and argmax
    views: Mapping[str, Difference]  # member -> its policy against its plain view, the policy chosen without the fold
    cross_fitted: CrossFitted


BASELINES: tuple[Name, ...] = (("equal", "argmax"), ("best", "argmax"))


def fit_chain(
    views: Members,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    seconds: Seconds | None = None,
) -> Chain:
    """The chain for test rows, fitted on all rows; methods are chosen by cross-fitting.

    labels: (N,) int.  folds: (N,) int, 0..K-1. Members are aligned (`chain.align`).
    """
    return Lab(views, labels, folds, settings, honest, (), seconds, None).chain()


def cross_fit(
    views: Members,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    seconds: Seconds | None = None,
) -> CrossFitted:
    """For every row what a chain says that never saw its fold."""
    return Lab(views, labels, folds, settings, honest, (), seconds, None).cross_fit()


def honest_chain(
    views: Members,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    seconds: Seconds | None = None,
    progress: Progress | None = None,
    spreads: Mapping[str, float] | None = None,
) -> Honest:
    """`fit_chain` and `cross_fit` in one, sharing their work, with the scores that may be quoted.

    spreads: member -> standard deviation of its score over training seeds, where that was studied.
    """
    metric = metric_named(settings.metric)
    lab = Lab(views, labels, folds, settings, honest, BASELINES, seconds, progress)
    chain, crossed = lab.chain(), lab.cross_fit()
    output = crossed.output(metric)
    classes, more = crossed.probs.shape[1], (honest.resamples, honest.seed)

    def over(name: Name) -> Difference:
        before = lab.candidates(frozenset())[name].chain.blend.weights
        difference = paired(labels, lab.cross_fit(name).output(metric), output, metric, classes, *more)
        return replace(difference, seeds=moved_by_seeds(before, chain.blend.weights, spreads or {}))

    over_equal, over_best = (over(name) for name in BASELINES)
    honest_score, equal = (
        score_with_error(labels, said, metric, classes, *more)
        for said in (output, lab.cross_fit(BASELINES[0]).output(metric))
    )
    effects = lab.effect_of_views()
    scores = (score_on(chain, views, labels), honest_score, equal)
    return Honest(chain, *scores, over_equal, over_best, effects, crossed)


def score_on(chain: Chain, views: Members, labels: np.ndarray) -> float:
    """The score of a chain on these rows; on the rows it was chosen on, a flattering one."""
    metric = metric_named(chain.metric)
    probs, decided = apply_chain(chain, views)
    return metric.score_labels(labels, decided, probs.shape[1]) if metric.of_tally else metric.score(labels, probs)


def choice(
    outputs: Mapping[Name, np.ndarray], labels: np.ndarray, metric: Metric, classes: int, honest: HonestSettings
) -> Name:
    """The last of the candidates that beats the first, the simplest, by more than a standard error; it where none does.

    outputs: (method, rule) -> (N,) labels or (N, C) probabilities, cross-fitted. The last gives way to an earlier one
    that says the same or beats it by more than a standard error: the best score among near-equals is luck.
    Method and rule are judged together: two gains within their noise can be out of it in sum, and a choice in two steps
    would keep neither (benchmarks/simulation.py).
    """

    def over(old: Name, new: Name) -> Difference:
        return paired(labels, outputs[old], outputs[new], metric, classes, honest.resamples, honest.seed)

    first, *others = outputs
    real = [name for name in others if over(first, name).is_better]
    chosen = real[-1] if real else first
    for name in reversed(real[:-1]):
        gain = over(chosen, name)
        if gain.is_better or not (gain.changed or gain.value):
            chosen = name
    return chosen


class Lab:
    """Fits without some folds, each made once."""

    def __init__(
        self,
        views: Members,
        labels: np.ndarray,
        folds: np.ndarray,
        settings: ChainSettings,
        honest: HonestSettings,
        beside: Sequence[Name],
        seconds: Seconds | None,
        progress: Progress | None,
    ) -> None:
        """beside: fitted along for comparison, never chosen unless they are candidates as well."""
        self.names = sorted(int(f) for f in np.unique(folds))
        if len(self.names) < 2 or self.names[0] < 0:
            raise Refusal(f"an honest score needs two folds or more, numbered from 0; found {self.names}")
        if not len(labels) == len(folds) == len(next(iter(views.values())).ids):
            raise Refusal(f"expected a label and a fold per row, found {len(labels)} and {len(folds)}")
        self.views, self.labels, self.folds = views, labels, folds
        self.settings, self.honest, self.seconds = settings, honest, seconds
        self.metric = metric_named(settings.metric)
        rules = rules_for(self.metric, settings.decision.rules)
        self.choices = [(method, rule) for method in settings.blend.methods for rule in rules]
        self.fitted = list(dict.fromkeys([*self.choices, *beside]))
        self.progress, self.done = progress, 0
        self.candidates = cache(self._candidates)  # on the instance, so that it goes when the instance goes
        self.choose = cache(self._choose)

    def chain(self) -> Chain:
        return self.candidates(frozenset())[self.choose(frozenset())].chain

    def cross_fit(self, fixed: Name | None = None) -> CrossFitted:
        """fixed: this candidate in every fold, instead of the one chosen without the fold."""
        n, classes = len(self.labels), next(iter(self.views.values())).probs.shape[2]
        probs, labels, chosen = np.zeros((n, classes), np.float32), np.zeros(n, np.int64), {}
        for k in self.names:
            chosen[k] = fixed or self.choose(frozenset({k}))
            probs[self.folds == k], labels[self.folds == k] = self._said(frozenset({k}), k, chosen[k])
        return CrossFitted(probs, labels, chosen)

    def effect_of_views(self) -> dict[str, Difference]:
        """Member -> what its policy, chosen without the fold it is judged on, changes against its plain view."""
        return {name: self._effect_of_views(name) for name in self.views}

    def _effect_of_views(self, name: str) -> Difference:
        views, classes = self.views[name], self.views[name].probs.shape[2]
        plain = views.view(plain_view(views))
        before, after = np.zeros_like(plain), np.zeros_like(plain)
        for k in self.names:
            here, chain = self.folds == k, self.candidates(frozenset({k}))[self.fitted[0]].chain
            before[here], after[here] = plain[here], member_probs(chain, name, views, np.flatnonzero(here))
            if (
                self.metric.of_tally is None and self.settings.blend.temperature
            ):  # or averaging would be credited with calibration
                before[here] = apply_temperature(plain[here], fit_temperature(plain[~here], self.labels[~here]))
        if self.metric.of_tally is not None:
            before, after = before.argmax(1), after.argmax(1)
        return paired(self.labels, before, after, self.metric, classes, self.honest.resamples, self.honest.seed)

    def _candidates(self, without: frozenset[int]) -> dict[Name, Candidate]:
        train = ~np.isin(self.folds, sorted(without))
        made = fit_candidates(self.views, self.labels, train, self.settings, self.fitted, self.seconds)
        self.done += 1
        if self.progress:
            k = len(self.names)
            self.progress(self.done, 1 + k + (0 if len(self.choices) == 1 or k < 3 else k * (k - 1) // 2))
        return made

    def _choose(self, without: frozenset[int]) -> Name:
        """The candidate that cross-fitting inside the folds not in `without` speaks for."""
        inner = [k for k in self.names if k not in without]
        if len(self.choices) == 1 or len(inner) < 2:  # nothing to choose, or nothing to choose it on
            return self.choices[0]
        said = {}
        for name in self.choices:
            parts = [self._said(without | {k}, k, name) for k in inner]
            whole = CrossFitted(np.concatenate([p for p, _ in parts]), np.concatenate([d for _, d in parts]), {})
            said[name] = whole.output(self.metric)
        labels = np.concatenate([self.labels[self.folds == k] for k in inner])
        classes = next(iter(self.views.values())).probs.shape[2]
        return choice(said, labels, self.metric, classes, self.honest)

    def _said(self, without: frozenset[int], fold: int, name: Name) -> tuple[np.ndarray, np.ndarray]:
        """On the rows of `fold`, by the candidate fitted without the folds of `without` (which holds `fold`)."""
        made = self.candidates(without)[name]
        at = self.folds[np.isin(self.folds, sorted(without))] == fold
        return made.probs[at], made.labels[at]
