"""The report's section on tuning: the charts of optuna.visualization, drawn by matplotlib, of every study whose values are used.

The charts are pictures inside the page (SVG as data: addresses), because the page allows no script, which plotly needs.
"""

import base64
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from competition.artifacts.studies import read_result, used_study
from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.params_file import Override
from competition.data.prepared import Prepared
from competition.ensemble.metrics import metric_named
from competition.report.page import Block, Charts, Section, Table, Text
from competition.tuning.choice import format_values, pareto_front
from competition.tuning.storage import open_storage

WIDTH = 560  # pixels of a chart on the page
LITTLE = 0.1  # a parameter with a smaller share of the importance is hardly worth searching
FEWEST = 4  # complete trials for a statement on importance


def tuning_section(
    work: Path, prepared: Prepared, params: Params, overrides: Sequence[Override] = ()
) -> Section | None:
    """Charts and tables of the studies whose values are used, one part for each member; None without a study."""
    blocks: list[Block] = []
    for name in params.members:
        result = used_study(work, prepared, params, name, overrides)
        best = read_result(result) if result is not None else {}
        if result is not None and "study" in best:
            blocks += _member_blocks(name, best, result, params, metric_named(prepared.competition.metric).sign)
    if not blocks:
        return None
    return Section("tuning", "Tuning", "tune/<member>/<study>/best.json, study.log · make tune", blocks)


def _member_blocks(name: str, best: dict[str, Any], result: Path, params: Params, sign: int) -> list[Block]:
    study = _load_study(best["study"], result, params)
    if study is None:
        return [Text([f"{name}: its study {best['study']} is not in the storage any more, only its result."])]
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]
    several = len(study.directions) > 1
    charts, importances = _charts(study, several), _importances(study, several)
    lines = [_result_line(name, best, sign), *_importance_lines(importances)]
    if several:
        points = [f"{name}:{trial.number}" for trial in pareto_front(trials)]
        lines.append(
            f"Points that none beats in both score and time: {', '.join(points)}; `make adopt TRIAL=...` takes one."
        )
    return [Text(lines), Charts(charts, name=name), _trials_table(trials, sign)]


def _load_study(name: str, result: Path, params: Params) -> Any | None:
    import optuna

    journal = result.with_name("study.log")
    if not params.tune.storage and not journal.is_file():
        return None
    try:
        return optuna.load_study(study_name=name, storage=open_storage(params.tune.storage, journal))
    except (KeyError, UserError):  # no such study, or no such database
        return None


def _result_line(name: str, best: dict[str, Any], sign: int) -> str:
    own = best["values"] == best["own_values"]
    line = f"{name}: {best['trials']} trials, {best['pruned']} pruned, a trial cost {best['mean_share']:.0%} of a full one. "
    line += f"Used: {format_values(best['values'])}{' (its own values)' if own else ''}."
    if comparison := best["comparison"]:
        line += (
            f" The best trial differs from the member's own values by {sign * comparison['difference']:+.4f} +- "
            f"{comparison['error']:.4f} on {comparison['rows']} rows that chose neither (training seeds: {comparison['seeds']})."
        )
    return line


def _importances(study: Any, several: bool) -> dict[str, float]:
    """Parameter -> share of the importance by PED-ANOVA (Watanabe et al. 2023), the largest first; {} for too few trials."""
    import optuna

    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    if len(complete) < FEWEST:
        return {}
    target = (lambda trial: trial.values[0]) if several else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator, target=target))
        except (RuntimeError, ValueError):  # equal scores, or parameters that not all trials have
            return {}


def _importance_lines(importances: dict[str, float]) -> list[str]:
    if not importances or sum(importances.values()) == 0:
        return []
    worth = [f"{key} ({share:.0%})" for key, share in importances.items() if share >= LITTLE]
    little = [key for key, share in importances.items() if share < LITTLE]
    line = f"Worth searching: {', '.join(worth)}, by their share in what distinguishes good trials."
    return [line + (f" Hardly: {', '.join(little)}." if little else "")]


def _charts(study: Any, several: bool) -> list[Markup]:
    from optuna.visualization import matplotlib as plots

    target: dict[str, Any] = {"target": lambda trial: trial.values[0], "target_name": "score"} if several else {}
    drawn = [
        ("history of the study", lambda: plots.plot_optimization_history(study, **target)),
        ("importance of each parameter", lambda: plots.plot_param_importances(study, **target)),
        ("score over each parameter", lambda: plots.plot_slice(study, **target)),
        ("all parameters of each trial", lambda: plots.plot_parallel_coordinate(study, **target)),
        ("learning curves; a cross ends a pruned trial", lambda: _learning_curves(study)),
    ]
    if several:
        names = ["score", "seconds of training"]
        drawn = [("score and training time", lambda: plots.plot_pareto_front(study, target_names=names)), *drawn[:-1]]
    return [picture for title, draw in drawn if (picture := _picture(title, draw)) is not None]


def _learning_curves(study: Any) -> Any:
    from optuna.visualization import matplotlib as plots

    axes = plots.plot_intermediate_values(study)
    axes.set_xlabel("percent of the trial")
    if axes.get_legend() is not None:
        axes.get_legend().remove()
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name == "PRUNED" and trial.intermediate_values:
            last = max(trial.intermediate_values)
            axes.plot([last], [trial.intermediate_values[last]], "kx")
    return axes


def _picture(title: str, draw: Callable[[], Any]) -> Markup | None:
    """The chart as an image element; None if it cannot be drawn from these trials."""
    import matplotlib as mpl
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "goldfold"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyplot.switch_backend("agg")  # optuna measures texts
        try:
            axes = draw()
            figure = axes.figure if hasattr(axes, "figure") else axes.flat[0].figure
            out = io.BytesIO()
            figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
        except (RuntimeError, ValueError):
            return None
        finally:
            pyplot.close("all")
    address = base64.b64encode(out.getvalue()).decode()
    return Markup('<img alt="{}" title="{}" width="{}" src="data:image/svg+xml;base64,{}">').format(
        title, title, WIDTH, address
    )


def _trials_table(trials: Sequence[Any], sign: int) -> Table:
    rows = []
    for trial in trials:
        facts = trial.user_attrs
        score = f"{sign * trial.values[0]:.4f}" if trial.state.name == "COMPLETE" else "–"
        state = "diverged" if "diverged" in facts else trial.state.name.lower()
        share = f"{facts['share']:.0%}" if "share" in facts else "–"
        seconds = f"{facts['seconds']:,.0f} s" if "seconds" in facts else "–"
        rows.append([str(trial.number), state, score, share, seconds, format_values(trial.params)])
    columns = ["trial", "state", "score", "trained", "training", "values"]
    return Table(columns, rows, 2, folded=f"{len(rows)} trials")
