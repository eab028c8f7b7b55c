"""Fit candidates - every calibration, blend method and decision rule - on some of the rows.

A metric of labels with the usual methods and rules is fitted on shortlists (`shortlist`), in a few numbers a row;
everything else on all probabilities of the rows. Both give the same chains (tests/ensemble/test_fitting.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from competition.ensemble.blend import SHORTLIST_METHODS, Blend, fit_blend, shortlist_weights
from competition.ensemble.calibration import apply_temperature, floored_logs, temperature_at
from competition.ensemble.chain import Chain, ChainSettings, MemberViews, Name, ViewSeconds, chain_labels, check_aligned
from competition.ensemble.decision import ARGMAX, TAUS, Decision, fit_decision, fit_prior, rarity
from competition.ensemble.metrics import metric_named
from competition.ensemble.outputs import MemberOutput, OutputCache, chunks
from competition.ensemble.policy import fit_policy
from competition.ensemble.shortlist import Shortlist, shortlist

KEPT = 4  # shortlists of other policies, kept for the next fits
MARGIN = 1.1  # a shortlist serves temperatures up to so much hotter than the one that it was made for


@dataclass(frozen=True)
class Candidate:
    """A chain fitted on some rows, and the labels it gives to the others."""

    chain: Chain
    labels: np.ndarray  # (n,) int; empty for a metric of probabilities


@dataclass(frozen=True)
class _Members:
    """What all candidates of one fit share, members in the order of their names."""

    outputs: Mapping[str, MemberOutput]
    steps: Mapping[str, int]  # grid steps of the temperatures

    def calibrated(self, calibration: str) -> dict[str, int]:
        return dict(self.steps) if calibration == "temperature" else dict.fromkeys(self.steps, 0)


class Fitter:
    """Fits on different rows of the same members, sharing what does not depend on the rows."""

    def __init__(
        self,
        views: MemberViews,
        labels: np.ndarray,
        blocks: np.ndarray,
        settings: ChainSettings,
        seconds: ViewSeconds | None = None,
    ) -> None:
        """labels: (N,) int.  blocks: (N,) int; a fit leaves out at most two of them."""
        check_aligned(views)
        self.views = {name: views[name] for name in sorted(views)}
        self.labels, self.blocks, self.settings, self.seconds = labels, blocks, settings, seconds
        self.metric = metric_named(settings.metric)
        self.classes = next(iter(views.values())).probs.shape[2]
        self.caches = {name: OutputCache(member, settings.policy.mixing, labels) for name, member in self.views.items()}
        self._shortlists: dict[tuple[object, ...], tuple[float, Shortlist]] = {}

    def candidates(self, without: frozenset[int], names: Sequence[Name]) -> dict[Name, Candidate]:
        """Every one of `names`, fitted without the rows of some blocks, whose labels are not read.

        Policies and temperatures are the same in all of them: fitted once.
        """
        train = ~np.isin(self.blocks, sorted(without))
        rows = np.flatnonzero(train)
        outputs = {}
        for name, member in self.views.items():
            costs = None if self.seconds is None else self.seconds.get(name)
            cache = self.caches[name]
            policy = fit_policy(member, self.labels, rows, self.metric, self.settings.policy, costs, cache)
            outputs[name] = cache.under(policy)
        calibrated = any(calibration == "temperature" for calibration, _, _ in names)
        steps = {name: one.temperature_step(train) if calibrated else 0 for name, one in outputs.items()}
        members = _Members(outputs, steps)
        candidates: dict[Name, Candidate] = {}
        short = [name for name in names if self.is_short(name)]
        if short:
            candidates |= self._fit_short(members, train, short)
        if len(short) < len(names):
            candidates |= self._fit_whole(members, train, [name for name in names if name not in candidates])
        return {name: candidates[name] for name in names}

    def is_short(self, name: Name) -> bool:
        """Whether shortlists are enough to fit this candidate."""
        _, method, rule = name
        by_rows = "rank" not in (self.settings.policy.mixing, self.settings.blend.mixing)
        usual = method in SHORTLIST_METHODS and rule in ("argmax", "prior")
        return self.metric.from_counts is not None and by_rows and usual

    def _chain(self, members: _Members, steps: Mapping[str, int], blend: Blend, decision: Decision) -> Chain:
        policies = {name: one.policy for name, one in members.outputs.items()}
        temperatures = {name: temperature_at(step) for name, step in steps.items()}
        mixing = self.settings.policy.mixing
        return Chain(self.settings.metric, policies, mixing, temperatures, blend, decision)

    def _fit_short(self, members: _Members, train: np.ndarray, names: Sequence[Name]) -> dict[Name, Candidate]:
        mixing, candidates = self.settings.blend.mixing, {}
        whole = self._shortlist(members, any(rule == "prior" for _, _, rule in names))
        for calibration in dict.fromkeys(calibration for calibration, _, _ in names):
            steps = members.calibrated(calibration)
            every = _calibrated(whole, members.outputs, steps, mixing)
            short, held_out = (every.take(np.flatnonzero(at)) for at in (train, ~train))
            for method in dict.fromkeys(method for other, method, _ in names if other == calibration):
                weights = shortlist_weights(method, short, self.metric, self.settings.blend)
                blend = Blend(method, mixing, dict(zip(members.outputs, weights.tolist(), strict=True)), ())
                mixed, rest = (_mix(one, weights) for one in (short, held_out))
                for rule in [rule for other, m, rule in names if (other, m) == (calibration, method)]:
                    decision, scores = ARGMAX, rest
                    if rule == "prior":
                        decision = fit_prior(short, _logs(mixed, mixing), self.metric)
                    if decision.offsets:
                        scores = _logs(rest, mixing) + np.array(decision.offsets)[held_out.listed]
                    chain = self._chain(members, steps, blend, decision)
                    candidates[calibration, method, rule] = Candidate(chain, held_out.winners(scores))
        return candidates

    def _shortlist(self, members: _Members, prior: bool) -> Shortlist:
        """Of all rows at temperature 1: temperatures keep the order of a row's classes in each member."""
        key = (prior, *((name, *one.policy.items()) for name, one in members.outputs.items()))
        hottest = max(1.0, *map(temperature_at, members.steps.values()))
        reach, short = self._shortlists.get(key, (0.0, None))
        if short is None or reach < hottest:
            reach = hottest * MARGIN if any(members.steps.values()) else hottest
            factors = np.exp(TAUS[-1] * reach * self._largest_favour()).astype(np.float32) if prior else None
            outputs = list(members.outputs.values())
            short = shortlist(
                lambda part: np.stack([one.probs(part) for one in outputs]),
                chunks(len(self.labels), self.classes * len(outputs)),
                self.labels,
                "mean",
                factors,
            )
            for member in self.views.values():
                member.release()
            self._shortlists[key] = (reach, short)
            for old in list(self._shortlists)[:-KEPT]:
                del self._shortlists[old]
        return short

    def _largest_favour(self) -> np.ndarray:
        """(C, C) float64: [d, c] is how much rarer class c is than d, at most, on the rows of any fit; 0 = never."""
        named = [int(block) for block in np.unique(self.blocks)]
        largest = np.zeros((self.classes, self.classes))
        for size in range(min(3, len(named))):
            for without in combinations(named, size):
                rare = rarity(self.labels[~np.isin(self.blocks, without)], self.classes)
                np.maximum(largest, rare - rare[:, None], out=largest)
        return largest

    def _fit_whole(self, members: _Members, train: np.ndarray, names: Sequence[Name]) -> dict[Name, Candidate]:
        rows, unseen, candidates = np.flatnonzero(train), np.flatnonzero(~train), {}
        truth = self.labels[train]
        for calibration in dict.fromkeys(calibration for calibration, _, _ in names):
            steps = members.calibrated(calibration)
            # Apart from the held-out rows, as test rows are: a rank among all rows would be another one.
            fitted = {
                name: apply_temperature(one.probs(rows), temperature_at(steps[name]))
                for name, one in members.outputs.items()
            }
            for method in dict.fromkeys(method for other, method, _ in names if other == calibration):
                blend = fit_blend(method, fitted, truth, self.metric, self.settings.blend)
                mixed = blend.mix(fitted)
                for rule in [rule for other, m, rule in names if (other, m) == (calibration, method)]:
                    decision = fit_decision(rule, mixed, truth, self.metric, self.settings.decision)
                    chain = self._chain(members, steps, blend, decision)
                    hard = self.metric.from_counts is not None and len(unseen)
                    given = chain_labels(chain, self.views, unseen) if hard else np.zeros(0, np.int64)
                    candidates[calibration, method, rule] = Candidate(chain, given)
        return candidates


def _calibrated(
    short: Shortlist, outputs: Mapping[str, MemberOutput], steps: Mapping[str, int], mixing: str
) -> Shortlist:
    """The shortlist with each member's values at its temperature, prepared for the mixing."""
    values, own, row = np.empty_like(short.values), np.empty_like(short.own), short.row_of
    for m, (name, output) in enumerate(outputs.items()):
        step = steps[name]
        if step == 0:
            values[m], own[m] = short.values[m], short.own[m]
        else:
            logs = floored_logs(short.values[m]) / np.float32(temperature_at(step))
            values[m] = np.exp(logs - output.log_norm(step)[row])
            own[m] = output.calibrated_own(step)
    if mixing == "geometric":
        values, own = floored_logs(values), floored_logs(own)
    return Shortlist(short.classes, short.labels, short.start, short.listed, values, own)


def _mix(short: Shortlist, weights: np.ndarray) -> np.ndarray:
    """(S,) float32: the weighted sum of the members."""
    mixed = np.zeros(len(short.listed), np.float32)
    for m in np.flatnonzero(weights):
        mixed += np.float32(weights[m]) * short.values[m]
    return mixed


def _logs(mixed: np.ndarray, mixing: str) -> np.ndarray:
    """(S,): the logarithm of the blend, up to a number for each row."""
    return mixed if mixing == "geometric" else floored_logs(mixed)
