"""The whole way from per-view probabilities to labels, as one small value.

    views -> policy (per member) -> temperature (per member) -> blend -> decision rule

A chain is fitted on out-of-fold rows, written to JSON, read back, and applied by one function to out-of-fold rows and
test rows alike: what was scored is what is submitted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from competition.ensemble.blend import Blend, BlendSettings, fit_blend
from competition.ensemble.calibration import apply_temperature, fit_temperature
from competition.ensemble.decision import Decision, DecisionSettings, fit_decision
from competition.ensemble.metrics import metric_named
from competition.ensemble.policy import PolicySettings, fit_policy, mix_views
from competition.ensemble.predictions import ViewPredictions
from competition.errors import Refusal
from competition.manifest import atomic, digest_of, plain

Members = Mapping[str, ViewPredictions]  # all with the same ids in the same order, see `align`
Name = tuple[str, str]  # blend method, decision rule
Seconds = Mapping[str, Mapping[str, float]]  # member -> view -> seconds for 1,000 images


@dataclass(frozen=True, slots=True)
class ChainSettings:
    metric: str  # a name in METRICS
    policy: PolicySettings
    blend: BlendSettings
    decision: DecisionSettings


@dataclass(frozen=True)
class Chain:
    metric: str
    policies: Mapping[str, Mapping[str, float]]  # member -> view -> weight
    view_mixing: str  # mean | geometric | rank
    temperatures: Mapping[str, float]  # member -> T
    blend: Blend
    decision: Decision

    def needs(self) -> dict[str, list[str]]:
        """Member -> views that must be predicted on test rows; the others have no weight."""
        return {m: list(self.policies[m]) for m, weight in self.blend.weights.items() if weight}

    def digest(self) -> str:
        return digest_of(self)

    def save(self, path: Path) -> None:
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(plain(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Chain":
        try:
            have = json.loads(path.read_text())
            blend, decision = have["blend"], have["decision"]
            return Chain(
                have["metric"],
                have["policies"],
                have["view_mixing"],
                have["temperatures"],
                Blend(blend["method"], blend["mixing"], blend["weights"], tuple(blend["offsets"])),
                Decision(decision["rule"], tuple(decision["offsets"]), tuple(decision["thresholds"]), decision["tau"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refusal(f"{path} is not a chain of choices ({error!r}); make it again with `make blend`") from error


def align(members: Members, ids: np.ndarray) -> dict[str, ViewPredictions]:
    """Every member's predictions for exactly these ids, in this order, all with the same number of classes."""
    aligned = {}
    for name, views in members.items():
        try:
            aligned[name] = views.at(ids)
        except Refusal as refusal:
            raise Refusal(f"member '{name}': {refusal}") from refusal
    _check(aligned)
    return aligned


def apply_chain(chain: Chain, views: Members) -> tuple[np.ndarray, np.ndarray]:
    """(N, C) float32 probabilities and (N,) int labels, in the order of the ids. Members without weight may lack."""
    missing = [name for name in chain.needs() if name not in views]
    if missing:
        raise Refusal(f"{len(missing)} blended members have no predictions, first {missing[:3]}; run `make predict`")
    _check({name: views[name] for name in chain.needs()})
    probs = chain.blend.mix({name: member_probs(chain, name, views[name]) for name in chain.needs()})
    return probs, chain.decision.labels(probs)


def member_probs(chain: Chain, name: str, views: ViewPredictions, rows: np.ndarray | None = None) -> np.ndarray:
    """(n, C) float32: one member after its policy and temperature, as it enters the blend, for `rows` or all."""
    return apply_temperature(mix_views(views, chain.policies[name], chain.view_mixing, rows), chain.temperatures[name])


@dataclass(frozen=True)
class Candidate:
    """A chain fitted on some rows, and what it says on the others."""

    chain: Chain
    probs: np.ndarray  # (n, C)
    labels: np.ndarray  # (n,)


def fit_candidates(
    views: Members,
    labels: np.ndarray,
    train: np.ndarray,
    settings: ChainSettings,
    names: Sequence[Name],
    seconds: Seconds | None = None,
) -> dict[Name, Candidate]:
    """(blend method, decision rule) -> the chain fitted on `train`, for every one of `names`.

    labels: (N,) int, of which those outside `train` are not read.  train: (N,) bool.
    Policies and temperatures are the same in all of them: fitted once.
    """
    _check(views)
    metric, rows = metric_named(settings.metric), np.flatnonzero(train)
    policies, temperatures, fitted, held_out = {}, {}, {}, {}
    for name, member in views.items():
        costs = None if seconds is None else seconds.get(name)
        policies[name] = fit_policy(member, labels, rows, metric, settings.policy, costs)
        # Apart from each other, as test rows are: a rank among all rows would be another one.
        mixing = settings.policy.mixing
        seen, unseen = (mix_views(member, policies[name], mixing, np.flatnonzero(at)) for at in (train, ~train))
        calibrated = settings.blend.temperature and mixing != "rank"  # ranks are no probabilities
        temperatures[name] = fit_temperature(seen, labels[train]) if calibrated else 1.0
        fitted[name], held_out[name] = (apply_temperature(probs, temperatures[name]) for probs in (seen, unseen))
    candidates = {}
    for method in dict.fromkeys(method for method, _ in names):
        blend = fit_blend(method, fitted, labels[train], metric, settings.blend)
        mixed = blend.mix(fitted)
        rest = blend.mix(held_out) if len(rows) < len(train) else mixed[:0]
        for rule in [rule for other, rule in names if other == method]:
            decision = fit_decision(rule, mixed, labels[train], metric, settings.decision)
            chain = Chain(settings.metric, policies, settings.policy.mixing, temperatures, blend, decision)
            candidates[method, rule] = Candidate(chain, rest, decision.labels(rest))
    return candidates


def _check(views: Members) -> None:
    if not views:
        raise Refusal("expected the predictions of at least one member, found none; run `make predict`")
    first = next(iter(views.values())).ids
    classes = {name: v.probs.shape[2] for name, v in views.items()}
    if len(set(classes.values())) > 1:
        raise Refusal(f"members have different numbers of classes: {classes}; expected one number")
    for name, member in views.items():
        if not np.array_equal(member.ids, first):
            raise Refusal(f"member '{name}' has other ids, or another order; expected aligned members")
