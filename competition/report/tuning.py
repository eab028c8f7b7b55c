"""The report's section on tuning: every study whose values are used, with charts and which parameters are worth searching.

The charts show what optuna.visualization shows, in the colours of the page and with texts that never overlap (see svg.py).
`make dashboard` has more of them.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil, isfinite
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from competition.config.errors import UserError, counted
from competition.config.params import Choice, Params
from competition.ensemble.metrics import metric_named, score_range
from competition.report.page import Block, Charts, Section, Table, Text
from competition.report.svg import Chart, axis_ends, chart, shortened
from competition.report.terminal import folds_text, plus_minus
from competition.tuning.choice import format_value, format_values, origin_of
from competition.tuning.storage import open_storage
from competition.workspace.studies import FinishedStudy, used_study
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LITTLE = 0.1  # a parameter with a smaller share of the importance is hardly worth searching
FEWEST = 4  # complete trials for a statement on importance
MANY = 20  # complete trials from which it is more than a rough guide
SIZE, MARGINS = (320, 220), (56, 14, 22, 34)  # pixels
OUTLIER = 3.0  # interquartile ranges below the lower quartile from which a score is drawn at the edge of its chart
MOST_TICKS = 4
MOST_SLICES = 12  # searched parameters with a chart


def tuning_section(workspace: Workspace) -> Section | None:
    """One part for each member whose study is used; one sentence without a study, None if no member can have one."""
    if not workspace.params.members:
        return None
    blocks: list[Block] = []
    for name in workspace.params.members:
        if (study := used_study(workspace, name)) is not None:
            blocks += _member_blocks(name, study, workspace.params, workspace.prepared.competition.metric)
    if not blocks:
        text = "No study of this data and these members: their own values are used. "
        blocks = [Text([text + "`make tune` searches, with tune.trials above 0."])]
    return Section("tuning", "Tuning", "tune/<member>/<study>/best.json, study.log · make tune", blocks)


def _member_blocks(name: str, finished: FinishedStudy, params: Params, metric: str) -> list[Block]:
    import optuna

    best, sign = finished.result, metric_named(metric).sign
    study, journal = None, finished.folder.with_name(best["study"]) / "study.log"
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
    scored = [trial for trial in trials if trial.state.name == "COMPLETE" and isfinite(trial.values[0])]
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
    return [Text(lines, name=name), study_charts(scored, importances, metric), table]


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
    hardly = ", ".join(key for key, share in importances.items() if share < LITTLE) or "none"
    rough = "" if complete >= MANY else f", a rough guide with fewer than {MANY}"
    return (
        f"Worth searching: {', '.join(worth)}; hardly: {hardly}, by their share in what distinguishes good trials "
        f"({complete} complete trials{rough})."
    )


def study_charts(trials: Sequence["FrozenTrial"], importances: Mapping[str, float], metric: str) -> Charts:
    """The score of each trial by its number and by every searched parameter.

    trials: the complete ones with a finite score, one or more.
    """
    # The axis holds all scores but those far below the others, such as of trials that learned nothing.
    values = np.array([trial.values[0] for trial in trials])
    lower, upper = np.quantile(values, [0.25, 0.75])
    inside = metric_named(metric).sign * values[values >= lower - OUTLIER * (upper - lower)]
    ends = axis_ends([float(inside.min()), float(inside.max())], score_range(metric))
    keys = list(dict.fromkeys([*importances, *(key for trial in trials for key in trial.params)]))
    charts = [trials_chart("", trials, metric, ends)]
    for key in keys[:MOST_SLICES]:
        charts.append(trials_chart(key, [trial for trial in trials if key in trial.params], metric, ends))
    note = "Gold: the best trial. ◆ the member's own values. A score too far off for the axis is at its end; the table has it."
    if len(keys) > MOST_SLICES:
        note += f" Charts of the {MOST_SLICES} most important of {len(keys)} parameters."
    return Charts(charts, note)


def trials_chart(key: str, trials: Sequence["FrozenTrial"], metric: str, ends: tuple[float, float]) -> Markup:
    """The score of each trial by the value of a searched parameter; key "": by its number, with the best score so far as a line.

    ends: of the axis.
    """
    values, sign = np.array([trial.values[0] for trial in trials]), metric_named(metric).sign
    best, scores = int(values.argmax()), sign * values
    title = f"{metric} by {key}" if key else f"{metric} of each trial"
    with chart(*SIZE, MARGINS) as drawing:
        drawing.axes.set(title=title, xlabel=key or "trial", ylim=ends)
        drawing.ticks(y=4)
        is_log = bool(key) and getattr(trials[0].distributions[key], "log", False)
        places = _value_axis(drawing, [trial.params[key] if key else trial.number for trial in trials], is_log)
        if not key:
            steps = np.clip(sign * np.maximum.accumulate(values), *ends)
            drawing.line(places, steps, "soft", "curve", "the best score so far", drawstyle="steps-post", linewidth=1.2)
        for n, (place, trial) in enumerate(zip(places, trials, strict=True)):
            is_own, note = origin_of(trial) == 0, " (the best)" if n == best else ""
            note += " (the member's own values)" if is_own else ""
            colour, style = ("gold", {"alpha": 1, "zorder": 4}) if n == best else ("c0", {"alpha": 0.75})
            height, tooltip = np.clip(scores[n], *ends), f"trial {trial.number}{note}: {scores[n]:.4f}"
            drawing.dots(place, height, colour, "dot", tooltip, marker="D" if is_own else "o", **style)
        value = f" with {format_value(trials[best].params[key])}" if key else ""
        number = trials[best].number
        return drawing.markup(f"{title}: {len(trials)} trials; the best is {scores[best]:.4f} in trial {number}{value}")


def _value_axis(drawing: Chart, values: Sequence[Choice], is_log: bool) -> list[float]:
    """Set the x axis for these values and return the place of each."""
    if any(isinstance(value, bool | str) for value in values):
        names = list(dict.fromkeys(map(format_value, values)))
        drawing.axes.set_xlim(-0.5, len(names) - 0.5)
        shown = range(0, len(names), ceil(len(names) / MOST_TICKS))
        drawing.axes.set_xticks(shown, [shortened(names[n], 10) for n in shown])
        return [float(names.index(format_value(value))) for value in values]
    places = [float(value) for value in values]
    low, high = min(places), max(places)
    if is_log:
        drawing.log_axis(low / 1.15, high * 1.15)
    else:
        margin = (high - low) * 0.06 or 0.1 * (abs(low) or 1)
        drawing.axes.set_xlim(low - margin, high + margin)
        is_whole = all(isinstance(value, int) for value in values)
        drawing.axes.locator_params(axis="x", nbins=MOST_TICKS, integer=is_whole)
    return places
