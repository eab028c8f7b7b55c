"""The report's section on tuning: what every study whose values are used has chosen. `make dashboard` has all trials and charts."""

from competition.config.errors import counted
from competition.report.page import Block, Section, Text
from competition.report.terminal import number, plus_minus
from competition.tuning.choice import format_values
from competition.workspace.dependencies import fold_names
from competition.workspace.studies import used_study
from competition.workspace.workspace import Workspace


def tuning_section(workspace: Workspace) -> Section | None:
    """One part for each member whose study is used; one sentence without a study, None if no member can have one."""
    if not workspace.params.members:
        return None
    blocks: list[Block] = []
    metric = workspace.prepared.metric
    for name in workspace.params.members:
        if (study := used_study(workspace, name)) is None:
            continue
        best = study.result
        own = " (its own values)" if best["values"] == best["own_values"] else ""
        line = f"{counted(best['trials'], 'trial')}, of which {best['pruned']} pruned. Used: {format_values(best['values'])}{own}."
        if best["score"] is not None:
            line += f" The best trial has {metric.name} {number(best['score'])}, optimistic, because it is the best of them."
        if comparison := best["comparison"]:
            line += (
                f" The best trial differs from the member's own values by {metric.sign * comparison['difference']:+.4f} "
                f"{plus_minus(comparison['error'])} on {comparison['rows']:,} rows that chose neither (training seeds: "
                f"{comparison['seeds']})."
            )
        folds = fold_names(best.get("ranking_folds", best["folds"]))
        compared = (
            f"Trials are compared by {metric.name} on rows of {folds}, of networks trained without the other folds, so their scores are "
            "lower than those of fold models. `make dashboard` shows every trial, and which parameters are worth searching."
        )
        blocks.append(Text([line, compared], name=name))
    if not blocks:
        text = "No study of this data and these members: their own values are used. "
        blocks = [Text([text + "`make tune` searches, with tune.trials above 0."])]
    return Section("tuning", "Tuning", "tune/<member>/<study>/best.json · make tune", blocks)
