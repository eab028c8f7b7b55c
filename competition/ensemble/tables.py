"""The tables of a report: every way to blend, and test-time views off, fixed and searched, by one yardstick."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from competition.ensemble.bootstrap import Score
from competition.ensemble.chain import ChainSettings, MemberViews, ViewSeconds
from competition.ensemble.compare import seed_noise_of_difference
from competition.ensemble.honest import HonestSettings
from competition.ensemble.nested import NestedCrossFit
from competition.ensemble.significance import Difference

ARGMAX = "argmax"


@dataclass(frozen=True)
class Row:
    """Scores are greater-is-better (Metric.display for the known number)."""

    name: str
    chosen_on: float  # on the rows everything was chosen on
    honest: Score  # on rows that took no part in the choice
    over: Mapping[str, Difference]  # name of the reference -> honest gain over it


@dataclass(frozen=True)
class _Way:
    """chosen_on: score on rows it was chosen on.  output: cross-fitted, as the metric needs it.  weights: by member."""

    chosen_on: float
    output: np.ndarray
    weights: Mapping[str, float]
    nested: NestedCrossFit


@dataclass(frozen=True)
class Table:
    """What all rows of a table are judged on."""

    labels: np.ndarray  # (N,) int
    folds: np.ndarray  # (N,) int
    settings: ChainSettings
    honest: HonestSettings
    seconds: ViewSeconds | None
    tuned_folds: Collection[int]

    def ways(self, views: MemberViews, settings: ChainSettings) -> dict[str, _Way]:
        """By blend method."""
        nested = NestedCrossFit(
            views,
            self.labels,
            self.folds,
            settings,
            self.honest,
            seconds=self.seconds,
            tuned_folds=self.tuned_folds,
        )
        ways = {}
        for name in nested.choices:
            chain = nested.candidates(frozenset())[name].chain
            ways[name[1]] = _Way(nested.score_on_own_rows(chain), nested.output(name), chain.blend.weights, nested)
        return ways


def blend_table(
    views: MemberViews,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    methods: Sequence[str],
    seconds: ViewSeconds | None = None,
    spreads: Mapping[str, float] | None = None,
    tuned_folds: Collection[int] = (),
) -> list[Row]:
    """Each member alone, then each blend method, with argmax; over: "equal" and "best" (the best single member).

    spreads: member -> standard deviation of its score over training seeds, where that was studied.
    tuned_folds: whose rows chose hyperparameters and are in no score (`nested.scored_rows`).
    """
    methods = tuple(dict.fromkeys(["equal", "best", *methods]))
    table = Table(labels, folds, settings, honest, seconds, tuned_folds)
    ways = {name: table.ways({name: views[name]}, _fixed(settings, ("equal",)))["equal"] for name in sorted(views)}
    ways |= table.ways(views, _fixed(settings, methods))
    return _rows(ways, ("equal", "best"), spreads or {})


def policy_table(
    views: MemberViews,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    methods: Sequence[str] = ("identity", "mean", "greedy"),
    seconds: ViewSeconds | None = None,
    tuned_folds: Collection[int] = (),
) -> list[Row]:
    """Test-time views per method, the members blended equally, with argmax; over: "identity" (no augmentation)."""
    table, ways = Table(labels, folds, settings, honest, seconds, tuned_folds), {}
    for method in dict.fromkeys(["identity", *methods]):
        chosen = replace(_fixed(settings, ("equal",)), policy=replace(settings.policy, method=method))
        ways[method] = table.ways(views, chosen)["equal"]
    return _rows(ways, ("identity",), {})  # of the same fold models


def _fixed(settings: ChainSettings, methods: Sequence[str]) -> ChainSettings:
    """These methods with argmax, at the simplest calibration."""
    blend = replace(settings.blend, methods=tuple(methods), calibrations=settings.blend.calibrations[:1])
    return replace(settings, blend=blend, decision=replace(settings.decision, rules=(ARGMAX,)))


def _rows(ways: Mapping[str, _Way], references: Sequence[str], spreads: Mapping[str, float]) -> list[Row]:
    rows = []
    for name, way in ways.items():
        over = {}
        for other in references:
            if other != name:
                seeds = seed_noise_of_difference(ways[other].weights, way.weights, spreads)
                over[other] = replace(way.nested.difference(ways[other].output, way.output), seeds=seeds)
        rows.append(Row(name, way.chosen_on, way.nested.score(way.output), over))
    return rows
