"""The tables of a report: every way to blend, and test-time views off, fixed and searched, by one yardstick."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from competition.ensemble.bootstrap import Difference, Score, paired, score_with_error
from competition.ensemble.chain import ChainSettings, Members, Seconds
from competition.ensemble.compare import moved_by_seeds
from competition.ensemble.honest import CrossFitted, HonestSettings, Lab, score_on
from competition.ensemble.metrics import metric_named

ARGMAX = "argmax"


@dataclass(frozen=True)
class Row:
    """Scores are greater-is-better (Metric.shown for the known number)."""

    name: str
    chosen_on: float  # on the rows everything was chosen on
    honest: Score  # on rows that took no part in the choice
    over: Mapping[str, Difference]  # name of the reference -> honest gain over it


@dataclass(frozen=True)
class _Found:
    """chosen_on: score on the rows it was chosen on.  crossed: what it says on rows it never saw.  weights: by member."""

    chosen_on: float
    crossed: CrossFitted
    weights: Mapping[str, float]


def blend_table(
    views: Members,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    methods: Sequence[str],
    seconds: Seconds | None = None,
    spreads: Mapping[str, float] | None = None,
) -> list[Row]:
    """Each member alone, then each blend method, with argmax; over: "equal" and "best" (the best single member).

    spreads: member -> standard deviation of its score over training seeds, where that was studied.
    """
    methods = tuple(dict.fromkeys(["equal", "best", *methods]))
    settings = _fixed(settings, methods)
    found: dict[str, _Found] = {}
    for name in sorted(views):
        found[name] = _cross_fit({name: views[name]}, labels, folds, _fixed(settings, ("equal",)), honest, seconds)[
            "equal"
        ]
    found |= _cross_fit(views, labels, folds, settings, honest, seconds)
    return _rows(found, labels, settings, honest, ("equal", "best"), spreads or {})


def policy_table(
    views: Members,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    methods: Sequence[str] = ("identity", "mean", "greedy"),
    seconds: Seconds | None = None,
) -> list[Row]:
    """Test-time views per method, the members blended equally, with argmax; over: "identity" (no augmentation)."""
    found = {}
    for method in dict.fromkeys(["identity", *methods]):
        chosen = replace(_fixed(settings, ("equal",)), policy=replace(settings.policy, method=method))
        found[method] = _cross_fit(views, labels, folds, chosen, honest, seconds)["equal"]
    return _rows(found, labels, settings, honest, ("identity",), {})  # of the same fold models


def _fixed(settings: ChainSettings, methods: Sequence[str]) -> ChainSettings:
    blend, decision = replace(settings.blend, methods=tuple(methods)), replace(settings.decision, rules=(ARGMAX,))
    return replace(settings, blend=blend, decision=decision)


def _cross_fit(
    views: Members,
    labels: np.ndarray,
    folds: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    seconds: Seconds | None,
) -> dict[str, _Found]:
    """By method."""
    lab = Lab(views, labels, folds, settings, honest, (), seconds, None)
    found = {}
    for method in settings.blend.methods:
        chain = lab.candidates(frozenset())[method, ARGMAX].chain
        found[method] = _Found(score_on(chain, views, labels), lab.cross_fit((method, ARGMAX)), chain.blend.weights)
    return found


def _rows(
    found: Mapping[str, _Found],
    labels: np.ndarray,
    settings: ChainSettings,
    honest: HonestSettings,
    references: Sequence[str],
    spreads: Mapping[str, float],
) -> list[Row]:
    metric, more = metric_named(settings.metric), (honest.resamples, honest.seed)
    rows = []
    for name, made in found.items():
        classes, output = made.crossed.probs.shape[1], made.crossed.output(metric)
        over = {}
        for other in references:
            if other != name:
                difference = paired(labels, found[other].crossed.output(metric), output, metric, classes, *more)
                seeds = moved_by_seeds(found[other].weights, made.weights, spreads)
                over[other] = replace(difference, seeds=seeds)
        rows.append(Row(name, made.chosen_on, score_with_error(labels, output, metric, classes, *more), over))
    return rows
