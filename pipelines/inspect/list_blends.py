"""Compare members, blend methods and TTA policies: score on the fitted rows, honest score, standard error."""

from collections.abc import Sequence

from competition.config.errors import counted
from competition.ensemble.external_check import joined_notes
from competition.ensemble.metrics import DEFAULT_RULES, Metric, metric_named
from competition.ensemble.nested import OofRows, scored_rows
from competition.ensemble.settings import chain_settings
from competition.ensemble.tables import TableRow, blend_table, policy_table
from competition.ensemble.trivial import trivial_score
from competition.prepare.adapter_types import needs_a_label
from competition.report.terminal import gain, seeds_line, with_error
from competition.workspace.ensemble_inputs import load_predictions, prediction_sources
from competition.workspace.scores import seed_spreads
from pipelines.terminal.output import table_lines
from pipelines.terminal.runner import Job


def run(job: Job) -> None:
    """predictions of the blend's runs -> two tables on the screen"""
    params, prepared = job.params, job.prepared
    sources = prediction_sources(job.workspace, job.options.allow_partial)
    inputs = load_predictions(job.workspace, sources)
    competition = prepared.competition
    settings, honest = chain_settings(params, competition.metric, needs_a_label(competition)), params.honest
    metric = metric_named(settings.metric)
    job.echo(
        f"list-blends: {counted(len(inputs.ids), 'out-of-fold row')}, {counted(len(inputs.oof), 'member')}; "
        f"all choices are cross-fitted over {len(inputs.predicted_folds)} folds\n"
    )
    spreads, notes = seed_spreads(job.workspace)
    job.echo(*(f"list-blends: {note}" for note in (*joined_notes(inputs.notes), *notes)))
    tuned = inputs.tuned_folds
    scored, optimistic = scored_rows(inputs.folds, tuned)
    if optimistic:
        job.echo("list-blends: OPTIMISTIC: every fold chose hyperparameters, so all rows are scored\n")
    elif tuned:
        job.echo(
            f"list-blends: folds {list(tuned)} chose hyperparameters: scores are computed on the other {scored.sum():,} rows\n"
        )
    rows = OofRows(inputs.oof, inputs.labels, inputs.folds, tuned)
    answer, score = trivial_score(inputs.labels[scored], metric, len(competition.classes))
    job.echo(f"list-blends: the trivial baseline, {answer}, scores {score:.4f}\n")
    job.echo(*gain_lines("blend method", blend_table(rows, settings, honest, spreads), metric))
    if any(len(predictions.views) > 1 for predictions in inputs.oof.values()):
        job.echo(*gain_lines("views, equal member weights", policy_table(rows, settings, honest), metric))
    job.echo(
        "list-blends: while choosing: on the rows that it was chosen on, optimistic, so a higher honest score is chance; honest and its "
        "gains: cross-fitted, on the same rows",
        f"list-blends: every row decides by {DEFAULT_RULES[metric.target]}; decision.rules may change the score of `make blend`",
        *seeds_line(spreads, inputs.oof),
    )


def gain_lines(title: str, rows: Sequence[TableRow], metric: Metric) -> list[str]:
    """The lines of a table.  title: of its first column."""
    references = sorted({name for row in rows for name in row.over})
    columns = [title, "while choosing", f"honest {metric.name}"]
    columns += [f"honest gain over {'the best member' if name == 'best' else name}" for name in references]
    cells = []
    for row in rows:
        honest = with_error(metric.display(row.honest.value), row.honest.error, metric.name)
        # A row that is a reference itself has no gain over it.
        gains = [gain(row.over[name]) if name in row.over else "no difference" for name in references]
        cells.append([row.name, f"{metric.display(row.chosen_on):.4f}", honest, *gains])
    return [*table_lines(columns, cells), ""]
