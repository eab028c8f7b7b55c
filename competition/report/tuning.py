"""The report's section on tuning: every study whose values are used, with charts and which parameters are worth searching.

The charts show what optuna.visualization shows, in the colours of the page and with texts that never overlap (see svg.py).
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from competition.config.errors import UserError, counted
from competition.config.params import Choice, Params
from competition.ensemble.metrics import metric_named, score_range
from competition.report.page import Block, Charts, Section, Table, Text
from competition.report.svg import NORMAL, PLACEHOLDERS, Chart, axis_ends, chart, shortened
from competition.report.terminal import folds_text, plus_minus
from competition.tuning.choice import format_value, format_values, origin_of
from competition.tuning.storage import open_storage
from competition.workspace.studies import read_result, used_study
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from optuna.trial import FrozenTrial

LITTLE = 0.1  # a parameter with a smaller share of the importance is hardly worth searching
FEWEST = 4  # complete trials for a statement on importance
MANY = 20  # complete trials from which it is more than a rough guide
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


def tuning_section(workspace: Workspace) -> Section | None:
    """One part for each member whose study is used; one sentence without a study, None if no member can have one."""
    if not workspace.params.members:
        return None
    blocks: list[Block] = []
    for name in workspace.params.members:
        if (result := used_study(workspace, name)) is not None:
            blocks += _member_blocks(name, result, workspace.params, workspace.prepared.competition.metric)
    if not blocks:
        text = "No study of this data and these members: their own values are used. "
        blocks = [Text([text + "`make tune` searches, with tune.trials above 0."])]
    return Section("tuning", "Tuning", "tune/<member>/<study>/best.json, study.log · make tune", blocks)


def _member_blocks(name: str, result: Path, params: Params, metric: str) -> list[Block]:
    import optuna

    best, sign = read_result(result), metric_named(metric).sign
    study, journal = None, result.with_name("study.log")
    if params.tune.storage or journal.is_file():
        with suppress(KeyError, UserError):  # no such study, or no such database
            study = optuna.load_study(study_name=best["study"], storage=open_storage(params.tune.storage, journal))
    own = best["values"] == best["own_values"]
    pruned = f", {best['pruned']} pruned, a trial cost {best['mean_share']:.0%} of a full one" if best["pruned"] else ""
    line = f"{best['trials']} trials{pruned}. "
    line += f"Used: {format_values(best['values'])}{' (its own values)' if own else ''}."
    if comparison := best["comparison"]:
        line += (
            f" The best trial differs from the member's own values by {sign * comparison['difference']:+.4f} "
            f"{plus_minus(comparison['error'])} on {comparison['rows']:,} rows that chose neither (training seeds: "
            f"{comparison['seeds']})."
        )
    scored_on = f"Scores of trials are {metric} on rows of {folds_text(best.get('ranking_folds', best['folds']))}"
    baseline = f" On these rows {best['trivial']}." if best.get("trivial") else ""  # absent in earlier versions
    lines = [
        line,
        f"{scored_on}, of networks trained without the other folds, so they are lower than those of fold models: they compare trials "
        f"and nothing else on this page.{baseline}",
    ]
    if study is None:
        missing = f"The study {best['study']} is not in the storage any more, only its result."
        return [Text([*lines, missing], name=name)]
    # A study that was continued has trials that did not take part in this choice.
    trials = [trial for trial in study.get_trials(deepcopy=False) if str(trial.number) in best["tried"]]
    scored = scored_trials(trials, sign)
    importances = _importances(trials)
    lines.append(importance_line(importances, len(scored)))
    rows = []
    for trial in trials:
        facts = trial.user_attrs
        score = f"{sign * trial.values[0]:.4f}" if trial.state.name == "COMPLETE" else "–"
        state = "diverged" if "diverged" in facts else trial.state.name.lower()
        share = f"{facts['share']:.0%}" if "share" in facts else "–"
        seconds = f"{trial.duration.total_seconds():,.0f} s" if trial.duration else "–"
        rows.append([str(trial.number), state, score, share, seconds, format_values(trial.params)])
    columns = ["trial", "state", "score", "trained", "training", "values"]
    table = Table(columns, rows, 2, folded=counted(len(rows), "trial"))
    if not scored:
        return [Text(lines, name=name), table]
    return [Text(lines, name=name), study_charts(trials, scored, importances, metric), table]


def _importances(trials: Sequence["FrozenTrial"]) -> dict[str, float]:
    """Parameter -> share of the importance by PED-ANOVA (Watanabe et al. 2023), the largest first; {} for too few trials."""
    import optuna

    if sum(trial.state.name == "COMPLETE" for trial in trials) < FEWEST:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # else it prints that a study was created
    study = optuna.create_study(direction="maximize")
    study.add_trials(trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (RuntimeError, ValueError):  # equal scores, or parameters that not all trials have
            return {}


def importance_line(importances: Mapping[str, float], complete: int) -> str:
    """One sentence on which parameters are worth searching.  complete: number of trials that it is based on."""
    if complete < FEWEST:
        return (
            f"Which parameters are worth searching is unknown: that needs {FEWEST} complete trials, and there are {complete} "
            "(tune.trials)."
        )
    if not importances or sum(importances.values()) == 0:
        return "No parameter distinguishes good trials from bad ones, so none of them is worth a longer search."
    worth = [f"{key} ({share:.0%})" for key, share in importances.items() if share >= LITTLE]
    little = [key for key, share in importances.items() if share < LITTLE]
    rough = "" if complete >= MANY else f", a rough guide with fewer than {MANY}"
    hardly = f"; hardly: {', '.join(little)}" if little else ""
    return (
        f"Worth searching: {', '.join(worth)}{hardly}, by their share in what distinguishes good trials "
        f"({complete} complete trials{rough})."
    )


def study_charts(
    trials: Sequence["FrozenTrial"], scored: Sequence[ScoredTrial], importances: Mapping[str, float], metric: str
) -> Charts:
    """The charts of a study, and what their marks mean: those that they have, and no others.

    trials: Optuna's, complete or pruned.  scored: of `scored_trials`, one or more.
    """
    # The axis holds all scores but those far below the others, such as trials that learned nothing.
    sign = metric_named(metric).sign
    scores = np.sort([sign * trial.score for trial in scored])
    lower, upper = np.quantile(scores, [0.25, 0.75])
    inside = scores[scores >= lower - OUTLIER * (upper - lower)]
    axis = ScoreAxis(metric, sign, *axis_ends([sign * float(inside[0]), sign * float(inside[-1])], score_range(metric)))
    distributions = {key: one for trial in trials for key, one in trial.distributions.items()}
    keys = [*importances, *(key for key in distributions if key not in importances)]
    logs = {key for key, one in distributions.items() if getattr(one, "log", False)}
    charts = [history_chart(scored, axis)]
    if any(importances.values()):
        charts.append(importance_chart(importances))
    charts += slice_charts(scored, keys, logs, axis)
    charts.append(curves_chart(trials, axis))
    marks = ["Gold: the best trial."]
    if any(trial.is_own for trial in scored):
        marks.append("◆ the member's own values.")
    if any(axis.clipped(trial.score) != trial.score for trial in scored):
        marks.append(f"{'▼' if axis.sign > 0 else '▲'} a score too far off for the axis; the table has it.")
    if any(trial.state.name == "PRUNED" and trial.intermediate_values for trial in trials):
        marks.append("✕ a pruned trial ends.")
    if len(keys) > MOST_SLICES:
        marks.append(f"Charts of the {MOST_SLICES} most important of {len(keys)} parameters.")
    return Charts([drawing for drawing in charts if drawing], " ".join(marks))


def scored_trials(trials: Sequence["FrozenTrial"], sign: int) -> list[ScoredTrial]:
    """The complete trials with a finite score.  trials: Optuna's.  sign: of the metric."""
    return [
        ScoredTrial(
            trial.number,
            sign * trial.values[0],
            trial.params,
            origin_of(trial) == 0,
        )
        for trial in trials
        if trial.state.name == "COMPLETE" and isfinite(trial.values[0])
    ]


def history_chart(trials: Sequence[ScoredTrial], axis: ScoreAxis) -> Markup:
    """The score of each trial, and the best score so far as a line."""
    with chart(*SIZE, MARGINS) as drawing:
        drawing.axes.set(title=f"{axis.metric} of each trial", xlabel="trial")
        numbers, scores = [trial.number for trial in trials], [trial.score for trial in trials]
        best_so_far = axis.sign * np.maximum.accumulate(axis.sign * np.array(scores))
        steps = np.clip(best_so_far, axis.low, axis.high)
        drawing.line(numbers, steps, "soft", "curve", "the best score so far", drawstyle="steps-post", linewidth=1.2)
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
    decades, candidates = range(floor(log10(low)), ceil(log10(high)) + 1), []
    for factors in ((1,), (1, 2, 5), (1, 2, 4), (1, 3), range(1, 10)):
        values = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
        candidates.append([value for value in values if low <= value <= high])
    powers, *others = candidates
    most = max((one for one in (*others, powers) if len(one) <= MOST_TICKS), key=len, default=[])
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
        drawing.ticks(y=4)
        for trial in reported:
            is_best = trial.number == best
            finite = [(step, value) for step, value in sorted(trial.intermediate_values.items()) if isfinite(value)]
            steps, values = np.array(finite, float).T
            colour, tooltip = (
                ("gold", f"trial {trial.number}, the best") if is_best else ("c0", f"trial {trial.number}")
            )
            width = {"linewidth": 2.4, "alpha": 1, "zorder": 3} if is_best else {"linewidth": 1, "alpha": 0.65}
            drawing.line(steps, limits.sign * values, colour, "curve", tooltip, **width)
            if trial.state.name == "PRUNED":
                end = limits.clipped(limits.sign * values[-1])
                tooltip = f"trial {trial.number} was pruned at {steps[-1]:.0f} %"
                drawing.dots(steps[-1], end, "wrong", "pruned", tooltip, marker="X", zorder=4)
        ended = sum(trial.state.name == "PRUNED" for trial in reported)
        return drawing.markup(f"{axis.metric} of {len(reported)} trials while they were trained; {ended} were pruned")


def _draw_trials(drawing: Chart, places: Sequence[float], trials: Sequence[ScoredTrial], axis: ScoreAxis) -> None:
    """A dot for each trial: gold for the best, a diamond for the own values, a triangle at the edge for an outlier."""
    drawing.axes.set_ylim(axis.low, axis.high)
    drawing.ticks(y=4)
    best = axis.best([trial.score for trial in trials])
    for n, (place, trial) in enumerate(zip(places, trials, strict=True)):
        is_inside, inset = axis.clipped(trial.score) == trial.score, 0.03 * (axis.high - axis.low)
        shape = "D" if trial.is_own else "o" if is_inside else "v" if axis.sign > 0 else "^"
        height = trial.score if is_inside else float(np.clip(trial.score, axis.low + inset, axis.high - inset))
        names = [name for name, holds in (("the best", n == best), ("the member's own values", trial.is_own)) if holds]
        notes = f" ({', '.join(names)})" if names else ""
        tooltip = f"trial {trial.number}{notes}: {trial.score:.4f}"
        colour, style = ("gold", {"alpha": 1, "zorder": 4}) if n == best else ("c0", {"alpha": 0.75, "zorder": 3})
        drawing.dots(place, height, colour, "dot", tooltip, marker=shape, **style)
