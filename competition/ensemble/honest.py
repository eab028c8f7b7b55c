"""Scores on rows that took no part in any choice behind them.

Everything chosen on out-of-fold rows - views, calibration, weights, the decision rule, and which of the candidates won -
is chosen again without each fold in turn, and scored on that fold (nested cross-validation; Varma & Simon 2006). The
choice among candidates is itself made by cross-fitting inside the remaining folds (`nested`). Rows whose labels chose
hyperparameters are in no score.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from competition.ensemble.bootstrap import Score
from competition.ensemble.chain import Chain, ChainSettings, MemberViews, Name, ViewSeconds
from competition.ensemble.compare import seed_noise_of_difference
from competition.ensemble.nested import CrossFitted, NestedCrossFit, Progress
from competition.ensemble.selection import HonestSettings
from competition.ensemble.significance import Difference

__all__ = ["BASELINES", "HonestResult", "HonestSettings", "cross_fit", "fit_chain", "honest_chain"]

BASELINES: tuple[Name, ...] = (("none", "equal", "argmax"), ("none", "best", "argmax"))


@dataclass(frozen=True)
class HonestResult:
    """A chain and what may be said of it.  Scores are greater-is-better (Metric.display for the known number)."""

    chain: Chain
    chosen_on: float  # on rows it was chosen on: flatters
    honest: Score
    equal: Score  # of equal weights and argmax, cross-fitted likewise
    over_equal: Difference  # against equal weights and argmax, cross-fitted likewise
    over_best: Difference  # against the member that was best on the other folds, and argmax
    views: Mapping[str, Difference]  # member -> its policy against its plain view, the policy chosen without the fold
    cross_fitted: CrossFitted  # of all rows
    scored: np.ndarray  # (N,) bool: the rows that all these scores are of
    is_optimistic: bool  # every row chose hyperparameters, so they are scored all the same
    blocks: int  # that the folds were merged into; as many as folds where none were


def fit_chain(
    views: MemberViews,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    seconds: ViewSeconds | None = None,
) -> Chain:
    """The chain for test rows, fitted on all rows; candidates are chosen by cross-fitting.

    labels: (N,) int.  folds: (N,) int, 0..K-1. Members are aligned (`chain.align`).
    """
    return NestedCrossFit(views, labels, folds, settings, honest, seconds=seconds).chain()


def cross_fit(
    views: MemberViews,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    seconds: ViewSeconds | None = None,
) -> CrossFitted:
    """For every row what a chain says that never saw its fold."""
    return NestedCrossFit(views, labels, folds, settings, honest, seconds=seconds).cross_fit()


def honest_chain(
    views: MemberViews,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    seconds: ViewSeconds | None = None,
    progress: Progress | None = None,
    spreads: Mapping[str, float] | None = None,
    tuned_folds: Collection[int] = (),
) -> HonestResult:
    """`fit_chain` and `cross_fit` in one, sharing their work, with the scores that may be quoted.

    spreads: member -> standard deviation of its score over training seeds, where that was studied.
    tuned_folds: whose held-out rows chose hyperparameters: they take part in the choices and are in no score.
    """
    nested = NestedCrossFit(
        views,
        labels,
        folds,
        settings,
        honest,
        beside=BASELINES,
        seconds=seconds,
        progress=progress,
        tuned_folds=tuned_folds,
    )
    chain, crossed = nested.chain(), nested.cross_fit()
    output = crossed.output(nested.metric)

    def over(name: Name, before: np.ndarray) -> Difference:
        weights = nested.candidates(frozenset())[name].chain.blend.weights
        seeds = seed_noise_of_difference(weights, chain.blend.weights, spreads or {})
        return replace(nested.difference(before, output), seeds=seeds)

    equal, best = (nested.output(name) for name in BASELINES)
    return HonestResult(
        chain,
        nested.score_on_own_rows(chain),
        nested.score(output),
        nested.score(equal),
        over(BASELINES[0], equal),
        over(BASELINES[1], best),
        {name: nested.views_effect(name) for name in views},
        crossed,
        nested.scored,
        nested.is_optimistic,
        len(nested.names),
    )
