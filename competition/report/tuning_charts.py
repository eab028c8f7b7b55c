"""Charts of a study: the score of each trial and of each value, importances, learning curves, and score against time.

They show what optuna.visualization shows, in the colours of the page and with texts that never overlap (see svg.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite, log10
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from competition.config.params import Choice
from competition.ensemble.metrics import score_range
from competition.report.svg import NORMAL, PLACEHOLDERS, Chart, axis_ends, chart, shortened
from competition.tuning.choice import format_value, origin_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from optuna.trial import FrozenTrial

SIZE, MARGINS = (320, 220), (56, 14, 22, 34)  # pixels
OUTLIER = 3.0  # interquartile ranges below the lower quartile from which a score is drawn at the edge of its chart
MOST_TICKS = 4
MOST_SLICES = 12  # searched parameters with a chart


@dataclass(frozen=True)
class ScoredTrial:
    """A complete trial."""

    number: int
    score: float  # as the metric shows it
    values: Mapping[str, Choice]  # parameter -> value
    is_own: bool  # tried the member's own values


@dataclass(frozen=True)
class ScoreAxis:
    """The axis of scores of all charts of a study.  sign: -1 if lower is better."""

    metric: str
    sign: int
    low: float
    high: float

    def clipped(self, score: float) -> float:
        return float(np.clip(score, self.low, self.high))

    def best(self, scores: Sequence[float]) -> int:
        """Index of the best score, the first of equal ones."""
        return int(np.argmax(self.sign * np.asarray(scores)))


def scored_trials(trials: Sequence["FrozenTrial"], sign: int) -> list[ScoredTrial]:
    """The complete trials with a finite score.  trials: Optuna's.  sign: of the metric."""
    return [
        ScoredTrial(trial.number, sign * trial.values[0], trial.params, origin_of(trial) == 0)
        for trial in trials
        if trial.state.name == "COMPLETE" and isfinite(trial.values[0])
    ]


def score_axis(trials: Sequence[ScoredTrial], metric: str, sign: int) -> ScoreAxis:
    """Limits that hold all scores but those far below the others, such as trials that learned nothing."""
    scores = np.sort([sign * trial.score for trial in trials])
    lower, upper = np.quantile(scores, [0.25, 0.75])
    inside = scores[scores >= lower - OUTLIER * (upper - lower)]
    ends = axis_ends([sign * float(inside[0]), sign * float(inside[-1])], score_range(metric))
    return ScoreAxis(metric, sign, *ends)


def history_chart(trials: Sequence[ScoredTrial], axis: ScoreAxis) -> Markup:
    """The score of each trial, and the best score so far as a line."""
    with chart(*SIZE, MARGINS) as drawing:
        drawing.axes.set(title=f"{axis.metric} of each trial", xlabel="trial")
        numbers, scores = [trial.number for trial in trials], [trial.score for trial in trials]
        best_so_far = axis.sign * np.maximum.accumulate(axis.sign * np.array(scores))
        steps = np.clip(best_so_far, axis.low, axis.high)
        (line,) = drawing.axes.step(numbers, steps, where="post", color=PLACEHOLDERS["soft"], linewidth=1.2)
        drawing.mark(line, "curve", "the best score so far")
        _draw_trials(drawing, [float(number) for number in numbers], trials, axis)
        drawing.axes.set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
        drawing.axes.locator_params(axis="x", nbins=6, integer=True)
        best = trials[axis.best(scores)]
        return drawing.markup(
            f"{axis.metric} of {len(trials)} trials; the best is {best.score:.4f} in trial {best.number}"
        )


def slice_charts(trials: Sequence[ScoredTrial], keys: Sequence[str], logs: set[str], axis: ScoreAxis) -> list[Markup]:
    """One chart for each searched parameter: the score by its value.  logs: parameters searched on a logarithmic scale."""
    charts = []
    for key in keys[:MOST_SLICES]:
        having = [trial for trial in trials if key in trial.values]
        if not having:
            continue
        with chart(*SIZE, MARGINS) as drawing:
            drawing.axes.set(title=f"{axis.metric} by {key}", xlabel=key)
            places = _value_axis(drawing.axes, [trial.values[key] for trial in having], key in logs)
            _draw_trials(drawing, places, having, axis)
            best = having[axis.best([trial.score for trial in having])]
            value = format_value(best.values[key])
            label = f"{axis.metric} by {key} of {len(having)} trials; the best trial has {value}"
            charts.append(drawing.markup(label))
    return charts


def _value_axis(axes: "Axes", values: Sequence[Choice], is_log: bool) -> list[float]:
    """Set the x axis for these values and return the place of each."""
    if any(isinstance(value, bool | str) for value in values):
        names = list(dict.fromkeys(map(format_value, values)))
        axes.set_xlim(-0.5, len(names) - 0.5)
        shown = range(0, len(names), ceil(len(names) / MOST_TICKS))
        axes.set_xticks(shown, [shortened(names[n], 10) for n in shown])
        return [float(names.index(format_value(value))) for value in values]
    numbers = [float(value) for value in values]
    places = [log10(number) for number in numbers] if is_log else numbers
    low, high = min(places), max(places)
    margin = (high - low) * 0.06 or 0.1 * (abs(low) or 1)
    axes.set_xlim(low - margin, high + margin)
    if is_log:
        ticks = log_ticks(10 ** (low - margin), 10 ** (high + margin))
        axes.set_xticks([log10(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    else:
        axes.locator_params(axis="x", nbins=MOST_TICKS)
    return places


def log_ticks(low: float, high: float) -> list[float]:
    """At most MOST_TICKS round values from low to high, which are above 0."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)

    def ticks(factors: Sequence[int]) -> list[float]:
        values = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
        return [value for value in values if low <= value <= high]

    candidates = [ticks(factors) for factors in ((1, 2, 5), (1, 2, 4), (1, 3), (1,), range(1, 10))]
    most = max((one for one in candidates if len(one) <= MOST_TICKS), key=len, default=[])
    powers = ticks((1,))
    if len(powers) > MOST_TICKS:
        most = powers[:: ceil(len(powers) / MOST_TICKS)]
    return most if len(most) > 1 else [float(f"{value:.2g}") for value in (low, high)]


def importance_chart(importances: Mapping[str, float]) -> Markup:
    """The share of each parameter in the importance, as bars.  importances: the largest first."""
    names = list(importances)
    with chart(SIZE[0], 26 * len(names) + 56, (14, 14, 22, 8)) as drawing:
        axes = drawing.axes
        axes.set(title="importance of each parameter", xlim=(0, 1), xticks=[], yticks=[], ylim=(len(names) - 0.4, -0.6))
        for row, name in enumerate(names):
            (bar,) = axes.barh(row + 0.18, importances[name], 0.3, color=PLACEHOLDERS["c0"], alpha=0.8)
            drawing.mark(bar, "bar", f"{name}: {importances[name]:.0%}")
            axes.text(0, row - 0.2, shortened(name, 30), va="center", size=NORMAL)
            axes.text(1, row - 0.2, f"{importances[name]:.0%}", va="center", ha="right", size=NORMAL)
        shares = ", ".join(f"{name} {share:.0%}" for name, share in importances.items())
        return drawing.markup(f"importance of each parameter: {shares}")


def curves_chart(trials: Sequence["FrozenTrial"], axis: ScoreAxis) -> Markup:
    """Scores while each trial was trained; a cross ends a pruned one, the best trial is thick.  Empty without reports.

    trials: Optuna's, complete or pruned.
    """
    reported = [trial for trial in trials if any(map(isfinite, trial.intermediate_values.values()))]
    if not reported:
        return Markup("")
    complete = scored_trials(reported, axis.sign)
    best = complete[axis.best([trial.score for trial in complete])].number if complete else -1
    scores = np.array([value for trial in reported for value in trial.intermediate_values.values() if isfinite(value)])
    # The low scores at the start of training would compress the rest of the chart.
    is_clipped = len(scores) > 10
    low, high = np.quantile(scores, 0.2 if is_clipped else 0), scores.max()
    ends = axis_ends([axis.sign * low, axis.sign * high], score_range(axis.metric))
    limits = replace(axis, low=ends[0], high=ends[1])
    with chart(*SIZE, MARGINS) as drawing:
        below = f"; the worst fifth is {'below' if axis.sign > 0 else 'above'}" if is_clipped else ""
        title = f"{axis.metric} in training{below}"
        drawing.axes.set(title=title, xlabel="percent of the trial", xlim=(0, 102), ylim=(limits.low, limits.high))
        drawing.ticks("y", 4)
        for trial in reported:
            is_best = trial.number == best
            finite = [(step, value) for step, value in sorted(trial.intermediate_values.items()) if isfinite(value)]
            steps, values = np.array(finite, float).T
            (line,) = drawing.axes.plot(steps, limits.sign * values, color=PLACEHOLDERS["gold" if is_best else "c0"])
            line.set(linewidth=2.4 if is_best else 1, alpha=1 if is_best else 0.65, zorder=3 if is_best else 2)
            drawing.mark(line, "curve", f"trial {trial.number}{', the best' if is_best else ''}")
            if trial.state.name == "PRUNED":
                end = limits.clipped(limits.sign * values[-1])
                (cross,) = drawing.axes.plot(steps[-1], end, "X", color=PLACEHOLDERS["wrong"], markersize=8)
                cross.set(markeredgewidth=0, clip_on=False, zorder=4)
                drawing.mark(cross, "pruned", f"trial {trial.number} was pruned at {steps[-1]:.0f} %")
        ended = sum(trial.state.name == "PRUNED" for trial in reported)
        return drawing.markup(f"{axis.metric} of {len(reported)} trials while they were trained; {ended} were pruned")


def _draw_trials(drawing: Chart, places: Sequence[float], trials: Sequence[ScoredTrial], axis: ScoreAxis) -> None:
    """A dot for each trial: gold for the best, a diamond for the own values, a triangle at the edge for an outlier."""
    drawing.axes.set_ylim(axis.low, axis.high)
    drawing.ticks("y", 4)
    best = axis.best([trial.score for trial in trials])
    for n, (place, trial) in enumerate(zip(places, trials, strict=True)):
        is_inside, inset = axis.clipped(trial.score) == trial.score, 0.03 * (axis.high - axis.low)
        shape = "D" if trial.is_own else "o" if is_inside else "v" if axis.sign > 0 else "^"
        height = trial.score if is_inside else float(np.clip(trial.score, axis.low + inset, axis.high - inset))
        (dot,) = drawing.axes.plot(
            place, height, shape, color=PLACEHOLDERS["gold" if n == best else "c0"], markersize=8
        )
        dot.set(markeredgewidth=0, clip_on=False, zorder=4 if n == best else 3, alpha=1 if n == best else 0.75)
        names = [name for name, holds in (("the best", n == best), ("the member's own values", trial.is_own)) if holds]
        notes = f" ({', '.join(names)})" if names else ""
        drawing.mark(dot, "dot", f"trial {trial.number}{notes}: {trial.score:.4f}")
