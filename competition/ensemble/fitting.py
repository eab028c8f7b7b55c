"""Fit candidates (combinations of calibration, blend method and decision rule) on some of the rows.

For a metric of labels, most methods and rules are fitted on shortlists (`shortlist`), which hold a few numbers per row;
everything else is fitted on the probabilities of all classes. Both give the same chains (tests/ensemble/test_fitting.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from competition.ensemble.blend import SHORTLIST_METHODS, Blend, fit_blend, shortlist_weights
from competition.ensemble.calibration import apply_temperature, temperature_at
from competition.ensemble.chain import (
    CandidateKey,
    Chain,
    ChainSettings,
    MemberViews,
    ViewSeconds,
    apply_chain,
    chain_labels,
    check_aligned,
)
from competition.ensemble.decision import ARGMAX, TAUS, Decision, fit_decision, fit_prior, rarity
from competition.ensemble.metrics import metric_named
from competition.ensemble.mixing import floored_logs, weighted_sum
from competition.ensemble.outputs import MemberOutput, OutputCache, chunks
from competition.ensemble.policy import fit_policy
from competition.ensemble.shortlist import Shortlist, shortlist
from competition.ensemble.stacking import sampled_rows

MAX_SHORTLISTS = 4  # cached, one per combination of policies
TEMPERATURE_MARGIN = 1.1  # a shortlist is computed for temperatures up to this factor above the present ones


@dataclass(frozen=True)
class Candidate:
    """A chain fitted on some rows, and its decided labels of the held-out rows."""

    chain: Chain
    decided: np.ndarray  # (n,) int or (n, C) bool; empty for a metric of probabilities


@dataclass(frozen=True)
class _Members:
    """The members under their fitted policies and temperatures, shared by all candidates of one fit; sorted by name."""

    outputs: Mapping[str, MemberOutput]
    steps: Mapping[
        str, Mapping[str, int]
    ]  # calibration -> member -> grid step of its temperature; step 0 is temperature 1


class Fitter:
    """Fits candidates on different subsets of rows, sharing results that do not depend on the subset."""

    def __init__(
        self,
        members: MemberViews,
        labels: np.ndarray,
        blocks: np.ndarray,
        settings: ChainSettings,
        seconds: ViewSeconds | None = None,
    ) -> None:
        """labels: (N,) int, or as the metric's target says.  blocks: (N,) int; a fit excludes at most two of them."""
        check_aligned(members)
        self.members = {name: members[name] for name in sorted(members)}
        self.labels, self.blocks, self.settings, self.seconds = labels, blocks, settings, seconds
        self.metric = metric_named(settings.metric)
        self.classes = next(iter(members.values())).probs.shape[2]
        self.caches = {
            name: OutputCache(member, settings.policy.mixing, labels) for name, member in self.members.items()
        }
        self._shortlists: dict[tuple[object, ...], tuple[float, Shortlist]] = {}

    def fit(self, excluded_blocks: frozenset[int], keys: Sequence[CandidateKey]) -> dict[CandidateKey, Candidate]:
        """Fit candidates without the rows of some blocks, whose labels are not read.

        Policies and temperatures are the same in all candidates and are fitted once.
        """
        train = ~np.isin(self.blocks, sorted(excluded_blocks))
        rows = np.flatnonzero(train)
        outputs = {}
        for name in self.members:
            costs = None if self.seconds is None else self.seconds.get(name)
            cache = self.caches[name]
            policy = fit_policy(cache, rows, self.metric, self.settings.policy, costs)
            outputs[name] = cache.with_policy(policy)
        steps = {"none": dict.fromkeys(outputs, 0)}
        if any(calibration == "temperature" for calibration, _, _ in keys):
            steps["temperature"] = {name: one.temperature_step(train) for name, one in outputs.items()}
        members = _Members(outputs, steps)
        candidates: dict[CandidateKey, Candidate] = {}
        shortlist_keys = [key for key in keys if self.uses_shortlist(key)]
        if shortlist_keys:
            candidates |= self._fit_on_shortlist(members, train, shortlist_keys)
        if len(shortlist_keys) < len(keys):
            candidates |= self._fit_on_probabilities(members, train, [key for key in keys if key not in candidates])
        return {key: candidates[key] for key in keys}

    def uses_shortlist(self, key: CandidateKey) -> bool:
        """Return True if this candidate can be fitted on a shortlist."""
        _, method, rule = key
        if self.metric.from_counts is None or "rank" in (self.settings.policy.mixing, self.settings.blend.mixing):
            return False
        return method in SHORTLIST_METHODS and rule in ("argmax", "prior")

    def _chain(self, members: _Members, steps: Mapping[str, int], blend: Blend, decision: Decision) -> Chain:
        policies = {name: one.policy for name, one in members.outputs.items()}
        temperatures = {name: temperature_at(step) for name, step in steps.items()}
        mixing = self.settings.policy.mixing
        return Chain(self.settings.metric, policies, mixing, temperatures, blend, decision)

    def _fit_on_shortlist(
        self, members: _Members, train: np.ndarray, keys: Sequence[CandidateKey]
    ) -> dict[CandidateKey, Candidate]:
        mixing, candidates = self.settings.blend.mixing, {}
        # Of a blend (S,): its logarithm, up to a constant per row.
        logs = np.asarray if mixing == "geometric" else floored_logs
        uncalibrated = self._shortlist(members, any(rule == "prior" for _, _, rule in keys))
        for calibration in dict.fromkeys(calibration for calibration, _, _ in keys):
            steps = members.steps[calibration]
            calibrated = _calibrated(uncalibrated, members.outputs, steps, mixing)
            short, held_out = (calibrated.take(np.flatnonzero(rows)) for rows in (train, ~train))
            for method in dict.fromkeys(m for c, m, _ in keys if c == calibration):
                weights = shortlist_weights(method, short, self.metric, self.settings.blend)
                blend = Blend(method, mixing, dict(zip(members.outputs, weights.tolist(), strict=True)))
                mixed, held_out_mixed = (weighted_sum(one.values, weights) for one in (short, held_out))
                for rule in [r for c, m, r in keys if (c, m) == (calibration, method)]:
                    decision, scores = ARGMAX, held_out_mixed
                    if rule == "prior":
                        decision = fit_prior(short, logs(mixed), self.metric)
                    if decision.offsets:
                        scores = logs(held_out_mixed) + np.array(decision.offsets)[held_out.listed]
                    chain = self._chain(members, steps, blend, decision)
                    candidates[calibration, method, rule] = Candidate(chain, held_out.winners(scores))
        return candidates

    def _shortlist(self, members: _Members, prior: bool) -> Shortlist:
        """The shortlist of all rows at temperature 1: a temperature keeps the order of a row's classes in each member.

        prior: list also the classes that only a prior correction can make win.
        """
        key = (prior, *((name, *one.policy.items()) for name, one in members.outputs.items()))
        steps = [step for of_member in members.steps.values() for step in of_member.values()]
        hottest = max(1.0, *map(temperature_at, steps))
        limit, short = self._shortlists.get(key, (0.0, None))
        if short is None or limit < hottest:
            limit = hottest * TEMPERATURE_MARGIN if any(steps) else hottest
            factors = np.exp(TAUS[-1] * limit * self._largest_prior_gaps()).astype(np.float32) if prior else None
            outputs = list(members.outputs.values())
            parts = chunks(len(self.labels), self.classes * len(outputs))
            short = shortlist(
                lambda part: np.stack([one.probs(part) for one in outputs]), parts, self.labels, "mean", factors
            )
            for member in self.members.values():
                member.release()
            self._shortlists[key] = (limit, short)
            for old in list(self._shortlists)[:-MAX_SHORTLISTS]:
                del self._shortlists[old]
        return short

    def _largest_prior_gaps(self) -> np.ndarray:
        """(C, C) float64: [d, c] is the largest log prior of d minus that of c over the rows of any fit, at least 0."""
        block_numbers = [int(block) for block in np.unique(self.blocks)]
        largest = np.zeros((self.classes, self.classes))
        for size in range(min(3, len(block_numbers))):
            for excluded_blocks in combinations(block_numbers, size):
                rarities = rarity(self.labels[~np.isin(self.blocks, excluded_blocks)], self.classes)
                np.maximum(largest, rarities - rarities[:, None], out=largest)
        return largest

    def _fit_on_probabilities(
        self, members: _Members, train: np.ndarray, keys: Sequence[CandidateKey]
    ) -> dict[CandidateKey, Candidate]:
        rows, held_out, candidates = np.flatnonzero(train), np.flatnonzero(~train), {}
        for calibration, method in dict.fromkeys((c, m) for c, m, _ in keys):
            steps = members.steps[calibration]
            few = sampled_rows(len(self.members), rows, self.classes) if method == "stacking" else rows
            # Ranks are computed among these rows only, without the held-out rows, as they are for test rows.
            probs = {
                name: apply_temperature(one.probs(few), temperature_at(steps[name]), self.metric.target == "multi")
                for name, one in members.outputs.items()
            }
            blend = fit_blend(method, probs, self.labels[few], self.metric, self.settings.blend)
            undecided = self._chain(members, steps, blend, ARGMAX)
            mixed = blend.mix(probs) if few is rows else None
            del probs
            for rule in [r for c, m, r in keys if (c, m) == (calibration, method)]:
                if mixed is None and rule not in ("argmax", self.metric.default_rule):
                    mixed = apply_chain(undecided, self.members, rows)[0]
                decision_probs = np.zeros((0, self.classes), np.float32) if mixed is None else mixed
                labels = self.labels[rows[: len(decision_probs)]]
                decision = fit_decision(rule, decision_probs, labels, self.metric, self.settings.decision)
                chain = replace(undecided, decision=decision)
                decided = np.zeros(0, np.int64)
                if self.metric.needs_labels and len(held_out):
                    decided = chain_labels(chain, self.members, held_out)
                candidates[calibration, method, rule] = Candidate(chain, decided)
        return candidates


def _calibrated(
    short: Shortlist, outputs: Mapping[str, MemberOutput], steps: Mapping[str, int], mixing: str
) -> Shortlist:
    """The shortlist with each member's values at its temperature, in the space of the mixing."""
    values, true_values, row = np.empty_like(short.values), np.empty_like(short.true_values), short.row_of
    for m, (name, output) in enumerate(outputs.items()):
        step = steps[name]
        if step == 0:
            values[m], true_values[m] = short.values[m], short.true_values[m]
        else:
            logs = floored_logs(short.values[m]) / np.float32(temperature_at(step))
            values[m] = np.exp(logs - output.log_norm(step)[row])
            true_values[m] = output.calibrated_true_probs(step)
    if mixing == "geometric":
        values, true_values = floored_logs(values), floored_logs(true_values)
    return Shortlist(short.classes, short.labels, short.start, short.listed, values, true_values)
