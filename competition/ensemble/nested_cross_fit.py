"""Nested cross-fitting: every choice is made without the rows that it is scored on.

The outer loop leaves out one block of folds for the score, the inner loop a second one for selecting the candidate. The
fit without blocks {j, k} serves the outer rounds of both j and k, so B blocks cost 1 + B + B(B-1)/2 fits (1 + B with one candidate).

To change how the candidate (blend method, decision rule) is selected, change `select_candidate`. To add a blend method, add
it to `blend.BLENDS` and `blend.fit_blend`; to add a decision rule, to `decision.RULES`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from competition.config.errors import UserError
from competition.config.params import Honest
from competition.ensemble.blend_weights import Blend, best_alone, fit_blend, sampled_rows
from competition.ensemble.bootstrap import Evaluation, Score, paired, score_with_error
from competition.ensemble.chain import CandidateKey, Chain, MemberViews, apply_chain, check_aligned
from competition.ensemble.decision import ARGMAX, fit_decision, rules_for
from competition.ensemble.metrics import DEFAULT_RULES, Metric
from competition.ensemble.settings import ChainSettings
from competition.ensemble.significance import Difference
from competition.ensemble.stored_predictions import IDENTITY, chunks
from competition.ensemble.tta_policy import ViewCache, fit_policy, mix_views

Progress = Callable[[int, int], None]  # (fits done, total number of fits)


@dataclass(frozen=True)
class Candidate:
    """A chain fitted on some rows, and its decided labels of the held-out rows."""

    chain: Chain
    decided: np.ndarray  # (n,) int or (n, C) bool; empty for a metric of probabilities


@dataclass(frozen=True)
class CrossFitted:
    """Predictions for each row by a chain fitted without the row's block."""

    probs: np.ndarray  # (N, C) float32
    decided: np.ndarray  # (N,) int64 or (N, C) bool, labels after the decision rule
    output: np.ndarray  # one of the two, as the metric needs
    selected: Mapping[int, CandidateKey]  # block -> candidate that predicted it


def blocks_of(folds: np.ndarray, blocks: int) -> np.ndarray:
    """Merge folds into at most `blocks` blocks of about equal size.

    folds: (N,) int.  Returns (N,) int, the block of each row.
    A row is then scored by a chain that was fitted without any row of its block, hence of its fold.
    """
    fold_numbers = np.unique(folds)
    if len(fold_numbers) < 2 or fold_numbers[0] < 0:
        raise UserError(f"an honest score needs two folds or more, numbered from 0; found {fold_numbers.tolist()}")
    return np.searchsorted(fold_numbers, folds) % min(blocks, len(fold_numbers))


def scored_rows(folds: np.ndarray, tuned_folds: Collection[int]) -> tuple[np.ndarray, bool]:
    """Return the rows to score, (N,) bool, and whether their scores are optimistic.

    Rows of the folds on whose labels hyperparameters were chosen are excluded. If no row remains, all rows are scored, optimistically.
    """
    scored = ~np.isin(folds, sorted(tuned_folds))
    return (scored, False) if scored.any() else (np.ones(len(folds), bool), True)


@dataclass(frozen=True)
class OofRows:
    """Out-of-fold predictions of all members, and what they are fitted and scored with."""

    members: MemberViews  # the same ids in the same order
    labels: np.ndarray  # (N,) int, or as the metric's target says
    folds: np.ndarray  # (N,) int, 0..K-1
    # Hyperparameters were chosen on the labels of these folds: used for fitting, excluded from scores.
    tuned_folds: Collection[int] = ()


class NestedCrossFit:
    """Fits of all candidates without some blocks of folds, each computed once, and the scores derived from them."""

    def __init__(
        self,
        rows: OofRows,
        settings: ChainSettings,
        honest: Honest,
        *,
        baselines: Sequence[CandidateKey] = (),
        progress: Progress | None = None,
    ) -> None:
        """baselines: fitted for comparison; not selected unless they are candidates as well."""
        labels, folds = rows.labels, rows.folds
        check_aligned(rows.members)
        self.members = {name: rows.members[name] for name in sorted(rows.members)}
        self.classes = next(iter(self.members.values())).probs.shape[2]  # C
        self.labels, self.blocks = labels, blocks_of(folds, honest.blocks)
        self.scored, self.is_optimistic = scored_rows(folds, rows.tuned_folds)
        self.settings, self.honest = settings, honest
        self.metric = settings.metric
        self.evaluation = Evaluation(self.metric, self.classes, honest.resamples, honest.seed)
        rules = rules_for(self.metric, settings.decision.rules)
        # The simplest first.
        self.candidate_keys = [(method, rule) for method in settings.blend.methods for rule in rules]
        self.fitted_keys = list(dict.fromkeys([*self.candidate_keys, *baselines]))
        self.block_numbers = sorted(int(block) for block in np.unique(self.blocks))
        self.rows_of = {block: np.flatnonzero(self.blocks == block) for block in self.block_numbers}
        self.progress, self.fits_done = progress, 0
        self.view_caches = {name: ViewCache(member, labels) for name, member in self.members.items()}
        # Cached per instance, so that the cache is freed with the instance.
        self.candidates = cache(self._candidates)
        self.select = cache(self._select)

    def chain(self) -> Chain:
        """The selected chain, fitted on all rows."""
        return self.candidates(frozenset())[self.select(frozenset())].chain

    def cross_fit(self, key: CandidateKey | None = None, blend: Blend | None = None) -> CrossFitted:
        """Predict each block with a chain fitted without it: that of `key`, else the one that was selected without it.

        blend: in place of that of each chain.
        """
        selected = {block: key or self.select(frozenset({block})) for block in self.block_numbers}
        probs = np.zeros((len(self.labels), self.classes), np.float32)
        decided = np.zeros(probs.shape, bool) if self.metric.target == "multi" else np.zeros(len(probs), np.int64)
        for block, rows in self.rows_of.items():
            chain = self.candidates(frozenset({block}))[selected[block]].chain
            chain = chain if blend is None else replace(chain, blend=blend)
            probs[rows], decided[rows] = apply_chain(chain, self.members, rows)
        return CrossFitted(probs, decided, self.metric.output_of(probs, decided), selected)

    def score(self, output: np.ndarray) -> Score:
        """Score of an output of all N rows, computed on the rows to score."""
        return score_with_error(self.labels[self.scored], output[self.scored], self.evaluation)

    def difference(self, before: np.ndarray, after: np.ndarray, seeds: float = 0.0) -> Difference:
        """Paired difference of two outputs of all N rows, computed on the rows to score.  seeds: its spread over training seeds."""
        rows = self.scored
        return replace(paired(self.labels[rows], before[rows], after[rows], self.evaluation), seeds=seeds)

    def score_on_fitted_rows(self, chain: Chain) -> float:
        """Score of a chain on rows that it was fitted on; optimistic."""
        rows = np.flatnonzero(self.scored)
        output = self.metric.output_of(*apply_chain(chain, self.members, rows))
        return self.metric.evaluate(self.labels[rows], output, self.classes)

    def view_effect(self, member: str) -> Difference:
        """Difference between a member's TTA policy and its identity view.  The policy is fitted without each block."""
        predictions, metric = self.members[member], self.metric
        order = np.argsort(np.concatenate(list(self.rows_of.values())))
        outputs: list[list[np.ndarray]] = [[], []]  # of both policies, block after block
        for block, rows in self.rows_of.items():
            candidate = next(iter(self.candidates(frozenset({block})).values()))  # the policies are the same in all
            for part in chunks(len(rows), self.classes):
                for output, policy in zip(outputs, ({IDENTITY: 1.0}, candidate.chain.policies[member]), strict=True):
                    output.append(metric.output_of(mix_views(predictions, policy, rows[part])))
                predictions.release()
        before, after = (np.concatenate(output)[order] for output in outputs)
        return self.difference(before, after)

    def _candidates(self, excluded_blocks: frozenset[int]) -> dict[CandidateKey, Candidate]:
        """Fit all candidates and baselines without the rows of some blocks, whose labels are not read.

        Policies are the same in all candidates and are fitted once.
        """
        train = ~np.isin(self.blocks, sorted(excluded_blocks))
        rows, held_out = np.flatnonzero(train), np.flatnonzero(~train)
        metric, members, blending, deciding = self.metric, self.members, self.settings.blend, self.settings.decision
        policies = {
            name: fit_policy(views, rows, metric, self.settings.policy) for name, views in self.view_caches.items()
        }

        candidates: dict[CandidateKey, Candidate] = {}
        rules_of: dict[CandidateKey, list[str]] = {}  # weights do not depend on the rule, but for the best member
        for method, rule in self.fitted_keys:
            rules_of.setdefault((method, rule if method == "best" else ""), []).append(rule)
        for (method, own_rule), rules in rules_of.items():
            few = sampled_rows(len(members), rows, self.classes) if method in ("stacking", "best") else rows
            if method == "best":
                score = partial(self._score_of_member, policies, few, own_rule)
                blend = best_alone(members, score, metric.target)
            else:
                probs_of = partial(lambda part, name: mix_views(members[name], policies[name], part), few)
                blend = fit_blend(method, members, probs_of, self.labels[few], metric, blending)
            undecided = Chain(self.metric.name, policies, blend, ARGMAX)
            probs = held_out_probs = np.zeros((0, self.classes), np.float32)
            if any(rule != DEFAULT_RULES[metric.target] for rule in rules):
                probs = apply_chain(undecided, members, rows)[0]
            if metric.needs_labels and len(held_out):
                held_out_probs = apply_chain(undecided, members, held_out)[0]
            for rule in rules:
                decision = fit_decision(rule, probs, self.labels[rows], metric, deciding, self.settings.at_least_one)
                chain = replace(undecided, decision=decision)
                candidates[method, rule] = Candidate(chain, decision.labels(held_out_probs))
        self.fits_done += 1
        if self.progress:
            k = len(self.block_numbers)
            inner_fits = 0 if len(self.candidate_keys) == 1 or k < 3 else k * (k - 1) // 2
            self.progress(self.fits_done, 1 + k + inner_fits)
        return candidates

    def _score_of_member(
        self, policies: Mapping[str, Mapping[str, float]], rows: np.ndarray, rule: str, name: str
    ) -> float:
        """The score of one member with its views and a decision rule of its own, on the rows that the rule is fitted on."""
        settings, labels = self.settings, self.labels[rows]
        probs = mix_views(self.members[name], policies[name], rows)
        decision = fit_decision(rule, probs, labels, self.metric, settings.decision, settings.at_least_one)
        return self.metric.evaluate(labels, self.metric.output_of(probs, decision.labels(probs)), self.classes)

    def _select(self, excluded_blocks: frozenset[int]) -> CandidateKey:
        """Select a candidate by cross-fitting inside the blocks that are not excluded."""
        inner_blocks = [block for block in self.block_numbers if block not in excluded_blocks]
        if len(self.candidate_keys) == 1 or len(inner_blocks) < 2:  # one candidate, or too few rows to compare them
            return self.candidate_keys[0]
        parts: dict[CandidateKey, list[np.ndarray]] = {key: [] for key in self.candidate_keys}
        for block in inner_blocks:
            excluded = excluded_blocks | {block}
            held_out = np.flatnonzero(np.isin(self.blocks, sorted(excluded)))
            in_block = self.blocks[held_out] == block
            for key, outputs in parts.items():
                candidate = self.candidates(excluded)[key]
                if self.metric.needs_labels:
                    outputs.append(candidate.decided[in_block])
                else:
                    outputs.append(apply_chain(candidate.chain, self.members, held_out[in_block])[0])
        output_of = {key: np.concatenate(outputs) for key, outputs in parts.items()}
        labels = np.concatenate([self.labels[self.blocks == block] for block in inner_blocks])
        return select_candidate(output_of, labels, self.metric, self.classes, self.honest)


def select_candidate(
    outputs: Mapping[CandidateKey, np.ndarray], labels: np.ndarray, metric: Metric, classes: int, honest: Honest
) -> CandidateKey:
    """Select the simplest candidate unless another one has a significant gain over it.

    outputs: candidate -> (N,) labels or (N, C) probabilities, cross-fitted, the simplest candidate first.

    1. Keep the candidates with a significant gain over the first. If there is none, select the first.
    2. Start with the last of them. Going backwards, replace it by a candidate whose output is identical or whose score
       is higher by more than one standard error: the best score among near-equals is luck.

    Method and rule are compared jointly: two gains within noise can be significant together, and a
    stepwise choice would reject both. In step 1 a gain of one standard error is not enough: among a dozen candidates
    one has it by luck in a third to half of the simulated competitions where none is better, and it then loses on fresh
    rows, because parameters fitted on the rows cost accuracy (benchmarks/simulation.py).
    """
    evaluation = Evaluation(metric, classes, honest.resamples, honest.seed)
    simplest, *others = outputs
    gains = {key: paired(labels, outputs[simplest], outputs[key], evaluation) for key in others}
    better = [key for key, gain in gains.items() if gain.value > 0 and gain.is_significant]
    selected = better[-1] if better else simplest
    for key in reversed(better[:-1]):
        gain = paired(labels, outputs[selected], outputs[key], evaluation)
        is_identical = not (gain.changed or gain.value)
        if gain.is_better or is_identical:
            selected = key
    return selected
