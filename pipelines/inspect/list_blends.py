"""Compare members, blend methods and TTA policies: score on the fitted rows, honest score, standard error."""

from competition.config.errors import counted
from competition.ensemble.metrics import DEFAULT_RULES, metric_named
from competition.ensemble.nested import OofRows, scored_rows
from competition.ensemble.settings import chain_settings
from competition.ensemble.tables import blend_table, policy_table
from competition.ensemble.trivial import trivial_score
from competition.files.manifest import write_json
from competition.prepare.adapter_types import needs_a_label
from competition.report.blend_tables import ways_section
from competition.report.page import Table
from competition.report.terminal import seeds_line
from competition.workspace.ensemble_inputs import load_predictions, prediction_sources
from competition.workspace.scores import seed_spreads
from pipelines.terminal.output import display_path, table_lines
from pipelines.terminal.runner import Job


def run(job: Job) -> None:
    """predictions of the blend's runs -> list_blends.json; prints two tables"""
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
    job.echo(*(f"list-blends: {note}" for note in (*inputs.notes, *notes)))
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
    blends = blend_table(rows, settings, honest, spreads)
    has_views = any(len(predictions.views) > 1 for predictions in inputs.oof.values())
    policies = policy_table(rows, settings, honest) if has_views else []
    write_json(job.path("list_blends.json"), {"blends": blends, "policies": policies})
    section = ways_section(job.path("list_blends.json"), metric)
    tables = [block for block in section.blocks if isinstance(block, Table)] if section else []
    for table in tables:
        job.echo(*table_lines(table.columns, table.rows), "")
    job.echo(*(f"list-blends: {note}" for note in dict.fromkeys(table.note for table in tables)))
    job.echo(
        f"list-blends: every row decides by {DEFAULT_RULES[metric.target]}; decision.rules may change the score of `make blend`"
    )
    job.echo(*seeds_line(spreads, inputs.oof))
    job.echo(f"list-blends: {display_path(job.path('list_blends.json'))}")
