"""Tables of cross-fitted scores: one of members and blend methods, one of TTA policy methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from competition.config.params import Honest
from competition.ensemble.blend import BLENDS
from competition.ensemble.bootstrap import Score
from competition.ensemble.compare import seed_noise_of_difference
from competition.ensemble.metrics import DEFAULT_RULES, metric_named
from competition.ensemble.nested import NestedCrossFit, OofRows
from competition.ensemble.settings import ChainSettings
from competition.ensemble.significance import Difference


@dataclass(frozen=True)
class TableRow:
    """One row of a table.  Scores are greater-is-better (see Metric.display)."""

    name: str
    chosen_on: float  # score on the rows that everything was fitted on; optimistic
    honest: Score  # cross-fitted
    over: Mapping[str, Difference]  # name of the reference -> cross-fitted gain over it


@dataclass(frozen=True)
class _Result:
    """chosen_on: score on the fitted rows.  output: cross-fitted, as the metric needs it.  weights: by member."""

    chosen_on: float
    output: np.ndarray
    weights: Mapping[str, float]
    nested: NestedCrossFit


def _results(nested: NestedCrossFit) -> dict[str, _Result]:
    """Blend method -> its result."""
    results = {}
    for key in nested.candidate_keys:
        chain, (method, _) = nested.candidates(frozenset())[key].chain, key
        score = nested.score_on_fitted_rows(chain)
        results[method] = _Result(score, nested.output(key), chain.blend.weights, nested)
    return results


def blend_table(
    rows: OofRows, settings: ChainSettings, honest: Honest, spreads: Mapping[str, float] | None = None
) -> list[TableRow]:
    """Each member alone, then each blend method, all with argmax; gains over "equal" and "best" (best single member).

    spreads: member -> standard deviation of its score over training seeds, for members where it was measured.
    """
    alone, results = _with_argmax(settings, ("equal",)), {}
    for name in sorted(rows.members):
        of_member = replace(rows, members={name: rows.members[name]})
        results[name] = _results(NestedCrossFit(of_member, alone, honest))["equal"]
    results |= _results(NestedCrossFit(rows, _with_argmax(settings, BLENDS), honest))
    return _table(results, ("equal", "best"), spreads or {})


def policy_table(rows: OofRows, settings: ChainSettings, honest: Honest) -> list[TableRow]:
    """Each TTA policy method, with equal weights and argmax; gains over "identity" (no augmentation)."""
    results = {}
    for method in ("identity", "mean", "greedy"):
        fixed = replace(_with_argmax(settings, ("equal",)), policy=replace(settings.policy, method=method))
        results[method] = _results(NestedCrossFit(rows, fixed, honest))["equal"]
    return _table(results, ("identity",), {})  # no spread over seeds: all use the same fold models


def _with_argmax(settings: ChainSettings, methods: Sequence[str]) -> ChainSettings:
    """The settings with these blend methods and argmax."""
    blend = replace(settings.blend, methods=tuple(methods))
    rule = DEFAULT_RULES[metric_named(settings.metric).target]
    return replace(settings, blend=blend, decision=replace(settings.decision, rules=(rule,)))


def _table(results: Mapping[str, _Result], references: Sequence[str], spreads: Mapping[str, float]) -> list[TableRow]:
    rows = []
    for name, result in results.items():
        gains = {}
        for reference in references:
            if reference != name:
                seeds = seed_noise_of_difference(results[reference].weights, result.weights, spreads)
                difference = result.nested.difference(results[reference].output, result.output)
                gains[reference] = replace(difference, seeds=seeds)
        rows.append(TableRow(name, result.chosen_on, result.nested.score(result.output), gains))
    return rows
