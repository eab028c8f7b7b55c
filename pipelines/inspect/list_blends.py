"""Compare members, blend methods and TTA policies: score on the fitted rows, honest score, standard error."""

from collections.abc import Mapping, Sequence
from typing import Any

from competition.config.errors import counted
from competition.ensemble.external_check import joined_notes
from competition.ensemble.metrics import DEFAULT_RULES, Metric
from competition.ensemble.nested_cross_fit import OofRows, scored_rows
from competition.ensemble.settings import chain_settings
from competition.ensemble.tables import TableRow, blend_table, policy_table
from competition.ensemble.trivial import trivial_score
from competition.report.terminal import gain, seeds_line, with_error
from competition.workspace.ensemble_inputs import (
    blend_dependencies,
    left_out_notes,
    load_predictions,
    prediction_sources,
)
from competition.workspace.scores import seed_spreads
from pipelines.terminal.job import Computed, Job
from pipelines.terminal.output import table_lines


def run(job: Job) -> None:
    """predictions of the blend's runs -> list_blends.json, and two tables on the screen"""
    sources = prediction_sources(job.workspace, job.options.allow_partial)
    spreads, notes = seed_spreads(job.workspace)
    depends = blend_dependencies(job.workspace, sources, spreads)
    path = job.path("list_blends.json")
    stored = job.cached("list-blends", path, depends, lambda _: compute_tables(job, sources, spreads)).result
    notes = [*notes, *left_out_notes(job.workspace, sources), *stored["notes"]]
    job.echo(*(f"list-blends: {note}" for note in notes), "")
    for columns, cells in stored["tables"]:
        job.echo(*table_lines(columns, cells), "")
    rule = DEFAULT_RULES[job.prepared.metric.target]
    job.echo(
        "list-blends: while choosing: on the rows that it was chosen on, optimistic, so a higher honest score is chance; honest and its "
        "gains: cross-fitted, on the same rows",
        f"list-blends: every row decides by {rule}; decision.rules may change the score of `make blend`",
        *seeds_line(spreads, stored["members"]),
    )


def compute_tables(job: Job, sources: Mapping[str, dict[str, Any]], spreads: Mapping[str, float]) -> Computed:
    """Cross-fit every blend method and view policy: no file, and the tables as the result."""
    inputs, competition, honest = load_predictions(job.workspace, sources), job.prepared.competition, job.params.honest
    metric, tuned = job.prepared.metric, inputs.tuned_folds
    settings = chain_settings(job.params, metric, competition.needs_a_label)
    scored, optimistic = scored_rows(inputs.folds, tuned)
    answer, score = trivial_score(inputs.labels[scored], metric, len(competition.classes))
    notes = [
        *joined_notes(inputs.notes),
        f"{counted(len(inputs.ids), 'out-of-fold row')}, {counted(len(inputs.oof), 'member')}; all choices are cross-fitted over "
        f"{len(inputs.predicted_folds)} folds",
        f"the trivial baseline, {answer}, scores {score:.4f}",
    ]
    if optimistic:
        notes.append("OPTIMISTIC: every fold chose hyperparameters, so all rows are scored")
    elif tuned:
        others = f"the other {scored.sum():,} rows"
        notes.append(f"folds {list(tuned)} chose hyperparameters: scores are computed on {others}")
    rows = OofRows(inputs.oof, inputs.labels, inputs.folds, tuned)
    tables = [gain_table("blend method", blend_table(rows, settings, honest, spreads), metric)]
    if any(len(predictions.views) > 1 for predictions in inputs.oof.values()):
        tables.append(gain_table("views, equal member weights", policy_table(rows, settings, honest), metric))
    return [], {"members": list(inputs.oof), "notes": notes, "tables": tables}


def gain_table(title: str, rows: Sequence[TableRow], metric: Metric) -> tuple[list[str], list[list[str]]]:
    """(columns, cells) of a table.  title: of its first column."""
    references = sorted({name for row in rows for name in row.over})
    columns = [title, "while choosing", f"honest {metric.name}"]
    columns += [f"honest gain over {'the best member' if name == 'best' else name}" for name in references]
    cells = []
    for row in rows:
        honest = with_error(metric.display(row.honest.value), row.honest.error, metric.name)
        # A row that is a reference itself has no gain over it.
        gains = [gain(row.over[name]) if name in row.over else "no difference" for name in references]
        cells.append([row.name, f"{metric.display(row.chosen_on):.4f}", honest, *gains])
    return columns, cells
