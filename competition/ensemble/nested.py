"""Nested cross-fitting: what is scored is chosen without the rows that score it, at every level.

A chain fitted without blocks {j, k} serves both as j's inner and k's inner round, so B blocks of folds cost
1 + B + B(B-1)/2 fits.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.bootstrap import Score, paired, score_with_error
from competition.ensemble.calibration import apply_temperature, temperature_at
from competition.ensemble.chain import (
    Chain,
    ChainSettings,
    MemberViews,
    Name,
    ViewSeconds,
    apply_chain,
    chain_labels,
    member_probs,
)
from competition.ensemble.decision import rules_for
from competition.ensemble.fitting import Candidate, Fitter
from competition.ensemble.metrics import Metric, metric_named
from competition.ensemble.outputs import chunks
from competition.ensemble.selection import HonestSettings, select_candidate
from competition.ensemble.significance import Difference

Progress = Callable[[int, int], None]  # fits done, fits in all


@dataclass(frozen=True)
class CrossFitted:
    """What chains say on rows they never saw.  probs: (N, C).  labels: (N,).  chosen: block -> candidate."""

    probs: np.ndarray
    labels: np.ndarray
    chosen: Mapping[int, Name]

    def output(self, metric: Metric) -> np.ndarray:
        return self.labels if metric.from_counts else self.probs


def blocks_of(folds: np.ndarray, blocks: int) -> np.ndarray:
    """(N,) int, the block of each row's fold: folds are merged into at most `blocks` blocks of about equal size.

    A row is then scored by a chain that saw no row of its block, hence none of its fold.
    """
    named = np.unique(folds)
    if len(named) < 2 or named[0] < 0:
        found = [int(fold) for fold in named]
        raise UserError(f"an honest score needs two folds or more, numbered from 0; found {found}")
    if blocks < 2:
        raise UserError(f"honest.blocks: {blocks} was found; an honest score needs two or more")
    return np.searchsorted(named, folds) % min(blocks, len(named))


def scored_rows(folds: np.ndarray, tuned_folds: Collection[int]) -> tuple[np.ndarray, bool]:
    """((N,) bool, whether the scores are optimistic): rows that scores are of.

    Rows of folds that chose hyperparameters are left out; where that leaves none, all are scored, optimistically.
    """
    scored = ~np.isin(folds, sorted(tuned_folds))
    return (scored, False) if scored.any() else (np.ones(len(folds), bool), True)


def candidates_of(settings: ChainSettings) -> list[Name]:
    """Every combination that the metric has a use for, the simplest first. Ranks are no probabilities to calibrate."""
    rules = rules_for(metric_named(settings.metric), settings.decision.rules)
    calibrations = ("none",) if settings.policy.mixing == "rank" else settings.blend.calibrations
    return [(calib, method, rule) for calib in calibrations for method in settings.blend.methods for rule in rules]


class NestedCrossFit:
    """Fits without some blocks of folds, each made once."""

    def __init__(
        self,
        views: MemberViews,
        labels: np.ndarray,
        folds: np.ndarray,
        settings: ChainSettings,
        honest: HonestSettings,
        *,
        beside: Sequence[Name] = (),
        seconds: ViewSeconds | None = None,
        progress: Progress | None = None,
        tuned_folds: Collection[int] = (),
    ) -> None:
        """beside: fitted along for comparison, never chosen unless they are candidates as well.

        tuned_folds: folds whose rows chose hyperparameters: they take part in choices and in no score.
        """
        if not len(labels) == len(folds) == len(next(iter(views.values())).ids):
            raise UserError(f"expected a label and a fold per row, found {len(labels)} and {len(folds)}")
        self.views, self.labels, self.blocks = views, labels, blocks_of(folds, honest.blocks)
        self.scored, self.is_optimistic = scored_rows(folds, tuned_folds)
        self.settings, self.honest = settings, honest
        self.metric = metric_named(settings.metric)
        self.fitter = Fitter(views, labels, self.blocks, settings, seconds)
        self.choices = candidates_of(settings)
        self.fitted = list(dict.fromkeys([*self.choices, *beside]))
        self.names = sorted(int(block) for block in np.unique(self.blocks))
        self.progress, self.done = progress, 0
        self.candidates = cache(self._candidates)  # on the instance, so that it goes when the instance goes
        self.choose = cache(self._choose)

    @property
    def classes(self) -> int:
        return self.fitter.classes

    def chain(self) -> Chain:
        """Fitted on all rows."""
        return self.candidates(frozenset())[self.choose(frozenset())].chain

    def cross_fit(self, fixed: Name | None = None) -> CrossFitted:
        """fixed: this candidate in every block, instead of the one chosen without the block."""
        probs, chosen = np.zeros((len(self.labels), self.classes), np.float32), {}
        labels = np.zeros(len(self.labels), np.int64)
        for block in self.names:
            chosen[block] = fixed or self.choose(frozenset({block}))
            chain, rows = self.candidates(frozenset({block}))[chosen[block]].chain, self._rows(block)
            probs[rows], labels[rows] = apply_chain(chain, self.views, rows)
        return CrossFitted(probs, labels, chosen)

    def output(self, fixed: Name) -> np.ndarray:
        """What one candidate says on rows it never saw: (N,) labels or (N, C) probabilities, as the metric needs."""
        if self.metric.from_counts is None:
            return self.cross_fit(fixed).probs
        labels = np.zeros(len(self.labels), np.int64)
        for block in self.names:
            labels[self._rows(block)] = self._held_out_output(frozenset({block}), block, fixed)
        return labels

    def score(self, output: np.ndarray) -> Score:
        """Of the rows that may be scored."""
        honest, at = self.honest, self.scored
        return score_with_error(self.labels[at], output[at], self.metric, self.classes, honest.resamples, honest.seed)

    def difference(self, before: np.ndarray, after: np.ndarray) -> Difference:
        """Of the rows that may be scored."""
        honest, at = self.honest, self.scored
        sizes = (self.classes, honest.resamples, honest.seed)
        return paired(self.labels[at], before[at], after[at], self.metric, *sizes)

    def score_on_own_rows(self, chain: Chain) -> float:
        """The score of a chain on rows that it was chosen on: it flatters."""
        rows = np.flatnonzero(self.scored)
        if self.metric.from_counts is None:
            return self.metric.score(self.labels[rows], apply_chain(chain, self.views, rows)[0])
        return self.metric.score_labels(self.labels[rows], chain_labels(chain, self.views, rows), self.classes)

    def views_effect(self, name: str) -> Difference:
        """What a member's policy, chosen without the block it is judged on, changes against its plain view."""
        views, hard = self.views[name], self.metric.from_counts is not None
        shape = (len(self.labels),) if hard else (len(self.labels), self.classes)
        before, after = (np.zeros(shape, np.int64 if hard else np.float32) for _ in range(2))
        plain = self.fitter.caches[name].plain()
        for block in self.names:
            chain, rows = self._views_chain(block), self._rows(block)
            plain_temperature = 1.0
            if chain.temperatures[name] != 1.0:  # or averaging would be credited with calibration
                plain_temperature = temperature_at(plain.temperature_step(self.blocks != block))
            parts = chunks(len(rows), self.classes) if chain.by_rows else [slice(0, len(rows))]
            for part in parts:
                at = rows[part]
                old, new = apply_temperature(plain.probs(at), plain_temperature), member_probs(chain, name, views, at)
                before[at], after[at] = (old.argmax(1), new.argmax(1)) if hard else (old, new)
                views.release()
        return self.difference(before, after)

    def _views_chain(self, block: int) -> Chain:
        """Policies are the same in all candidates; a metric of probabilities judges them calibrated, where it can."""
        calibrated = [name for name in self.fitted if name[0] == "temperature" and self.metric.from_counts is None]
        return self.candidates(frozenset({block}))[(calibrated or self.fitted)[0]].chain

    def _rows(self, block: int) -> np.ndarray:
        return np.flatnonzero(self.blocks == block)

    def _candidates(self, without: frozenset[int]) -> dict[Name, Candidate]:
        candidates = self.fitter.candidates(without, self.fitted)
        self.done += 1
        if self.progress:
            k = len(self.names)
            self.progress(self.done, 1 + k + (0 if len(self.choices) == 1 or k < 3 else k * (k - 1) // 2))
        return candidates

    def _choose(self, without: frozenset[int]) -> Name:
        """The candidate that cross-fitting inside the blocks not in `without` speaks for."""
        inner = [block for block in self.names if block not in without]
        if len(self.choices) == 1 or len(inner) < 2:  # nothing to choose, or nothing to choose it on
            return self.choices[0]
        outputs = {
            name: np.concatenate([self._held_out_output(without | {block}, block, name) for block in inner])
            for name in self.choices
        }
        labels = np.concatenate([self.labels[self.blocks == block] for block in inner])
        return select_candidate(outputs, labels, self.metric, self.classes, self.honest)

    def _held_out_output(self, without: frozenset[int], block: int, name: Name) -> np.ndarray:
        """On the rows of `block`, by the candidate fitted without the blocks of `without` (which holds `block`)."""
        candidate = self.candidates(without)[name]
        unseen = np.flatnonzero(np.isin(self.blocks, sorted(without)))
        here = self.blocks[unseen] == block
        if self.metric.from_counts is not None:
            return candidate.labels[here]
        # Of all unseen rows where ranks are taken among them, as in every round.
        rows = unseen[here] if candidate.chain.by_rows else unseen
        probs = apply_chain(candidate.chain, self.views, rows)[0]
        return probs if candidate.chain.by_rows else probs[here]
