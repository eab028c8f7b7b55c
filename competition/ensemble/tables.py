"""Tables of cross-fitted scores: one of members and blend methods, one of TTA policy methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from competition.config.params import Honest
from competition.ensemble.blend_weights import BLENDS
from competition.ensemble.bootstrap import Score
from competition.ensemble.chain import CandidateKey
from competition.ensemble.compare import seed_noise_of_difference
from competition.ensemble.metrics import DEFAULT_RULES
from competition.ensemble.nested_cross_fit import NestedCrossFit, OofRows
from competition.ensemble.settings import ChainSettings
from competition.ensemble.significance import Difference

Fit = tuple[NestedCrossFit, CandidateKey]  # a candidate, and the cross-fitting that fits it


@dataclass(frozen=True)
class TableRow:
    """One row of a table.  Scores are greater-is-better (see Metric.display)."""

    name: str
    chosen_on: float  # score on the rows that everything was fitted on; optimistic
    honest: Score  # cross-fitted
    over: Mapping[str, Difference]  # name of the reference -> cross-fitted gain over it


def blend_table(
    rows: OofRows, settings: ChainSettings, honest: Honest, spreads: Mapping[str, float] | None = None
) -> list[TableRow]:
    """Each member alone, then each blend method, all with argmax; gains over "equal" and "best" (best single member).

    spreads: member -> standard deviation of its score over training seeds, for members where it was measured.
    """
    alone, fits = _with_argmax(settings, ("equal",)), dict[str, Fit]()
    for name in sorted(rows.members):
        nested = NestedCrossFit(replace(rows, members={name: rows.members[name]}), alone, honest)
        fits[name] = nested, nested.candidate_keys[0]
    nested = NestedCrossFit(rows, _with_argmax(settings, BLENDS), honest)
    fits |= {method: (nested, (method, rule)) for method, rule in nested.candidate_keys}
    return _table(fits, ("equal", "best"), spreads or {})


def policy_table(rows: OofRows, settings: ChainSettings, honest: Honest) -> list[TableRow]:
    """Each TTA policy method, with equal weights and argmax; gains over "identity" (no augmentation)."""
    fits: dict[str, Fit] = {}
    for method in ("identity", "mean", "greedy"):
        fixed = replace(_with_argmax(settings, ("equal",)), policy=replace(settings.policy, method=method))
        nested = NestedCrossFit(rows, fixed, honest)
        fits[method] = nested, nested.candidate_keys[0]
    return _table(fits, ("identity",), {})  # no spread over seeds: all use the same fold models


def _with_argmax(settings: ChainSettings, methods: Sequence[str]) -> ChainSettings:
    """The settings with these blend methods and argmax."""
    blend = replace(settings.blend, methods=tuple(methods))
    rule = DEFAULT_RULES[settings.metric.target]
    return replace(settings, blend=blend, decision=replace(settings.decision, rules=(rule,)))


def _table(fits: Mapping[str, Fit], references: Sequence[str], spreads: Mapping[str, float]) -> list[TableRow]:
    """fits: name of the row -> its fit."""
    outputs = {name: nested.cross_fit(key).output for name, (nested, key) in fits.items()}
    chains = {name: nested.candidates(frozenset())[key].chain for name, (nested, key) in fits.items()}
    rows = []
    for name, (nested, _) in fits.items():
        gains = {}
        for other in (reference for reference in references if reference != name):
            seeds = seed_noise_of_difference(chains[other].blend.weights, chains[name].blend.weights, spreads)
            gains[other] = nested.difference(outputs[other], outputs[name], seeds)
        rows.append(TableRow(name, nested.score_on_fitted_rows(chains[name]), nested.score(outputs[name]), gains))
    return rows
