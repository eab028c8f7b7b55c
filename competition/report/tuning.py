"""The report's section on tuning: every study whose values are used, with charts and which parameters are worth searching."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.errors import UserError, counted
from competition.config.params import Params
from competition.ensemble.metrics import metric_named
from competition.report.page import Block, Charts, Section, Table, Text
from competition.report.terminal import Scores, folds_text, plus_minus
from competition.report.tuning_charts import (
    MOST_SLICES,
    ScoreAxis,
    curves_chart,
    history_chart,
    importance_chart,
    score_axis,
    scored_trials,
    slice_charts,
)
from competition.tuning.choice import format_values
from competition.tuning.storage import open_storage
from competition.workspace.studies import read_result, used_study
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

LITTLE = 0.1  # a parameter with a smaller share of the importance is hardly worth searching
FEWEST = 4  # complete trials for a statement on importance
MANY = 20  # complete trials from which it is more than a rough guide


def tuning_section(workspace: Workspace) -> Section | None:
    """One part for each member whose study is used; one sentence without a study, None if no member can have one."""
    if not workspace.params.members:
        return None
    blocks: list[Block] = []
    for name in workspace.params.members:
        result = used_study(workspace, name)
        if result is not None:
            blocks += _member_blocks(
                name, read_result(result), result, workspace.params, workspace.prepared.competition.metric
            )
    if not blocks:
        text = "No study of this data and these members: their own values are used. "
        blocks = [Text([text + '`make tune SET="tune.trials=20"` searches.'])]
    return Section("tuning", "Tuning", "tune/<member>/<study>/best.json, study.log · make tune", blocks)


def _member_blocks(name: str, best: Scores, result: Path, params: Params, metric: str) -> list[Block]:
    sign, study = metric_named(metric).sign, _load_study(best["study"], result, params)
    own = best["values"] == best["own_values"]
    line = f"{best['trials']} trials, {best['pruned']} pruned, a trial cost {best['mean_share']:.0%} of a full one. "
    line += f"Used: {format_values(best['values'])}{' (its own values)' if own else ''}."
    if comparison := best["comparison"]:
        line += (
            f" The best trial differs from the member's own values by {sign * comparison['difference']:+.4f} "
            f"{plus_minus(comparison['error'])} on {comparison['rows']:,} rows that chose neither (training seeds: "
            f"{comparison['seeds']})."
        )
    rows = f"Scores of trials are {metric} on rows of {folds_text(best['folds'])}"
    baseline = f" On these rows {best['trivial']}." if best.get("trivial") else ""  # absent in earlier versions
    lines = [line, f"{rows}, so they compare trials and nothing else on this page.{baseline}"]
    if study is None:
        missing = f"The study {best['study']} is not in the storage any more, only its result."
        return [Text([*lines, missing], name=name)]
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]
    scored = scored_trials(trials, sign)
    importances = _importances(study)
    lines.append(importance_line(importances, len(scored)))
    if not scored:
        return [Text(lines, name=name), _trials_table(trials, sign)]
    axis = score_axis(scored, metric, sign)
    return [Text(lines, name=name), study_charts(trials, importances, axis), _trials_table(trials, sign)]


def _load_study(name: str, result: Path, params: Params) -> "Study | None":
    import optuna

    journal = result.with_name("study.log")
    if not params.tune.storage and not journal.is_file():
        return None
    try:
        return optuna.load_study(study_name=name, storage=open_storage(params.tune.storage, journal))
    except (KeyError, UserError):  # no such study, or no such database
        return None


def _importances(study: "Study") -> dict[str, float]:
    """Parameter -> share of the importance by PED-ANOVA (Watanabe et al. 2023), the largest first; {} for too few trials."""
    import optuna

    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    if len(complete) < FEWEST:
        return {}
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


def study_charts(trials: Sequence["FrozenTrial"], importances: Mapping[str, float], axis: ScoreAxis) -> Charts:
    """The charts of a study, and what their marks mean: those that they have, and no others.

    trials: Optuna's, complete or pruned.
    """
    scored = scored_trials(trials, axis.sign)
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


def _trials_table(trials: Sequence["FrozenTrial"], sign: int) -> Table:
    rows = []
    for trial in trials:
        facts = trial.user_attrs
        score = f"{sign * trial.values[0]:.4f}" if trial.state.name == "COMPLETE" else "–"
        state = "diverged" if "diverged" in facts else trial.state.name.lower()
        share = f"{facts['share']:.0%}" if "share" in facts else "–"
        seconds = f"{facts['seconds']:,.0f} s" if "seconds" in facts else "–"
        rows.append([str(trial.number), state, score, share, seconds, format_values(trial.params)])
    columns = ["trial", "state", "score", "trained", "training", "values"]
    return Table(columns, rows, 2, folded=f"{counted(len(rows), 'trial')}")
