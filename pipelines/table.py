"""Every way to blend and every use of views by one yardstick: on the rows it was chosen on, honest, standard error."""

from competition.artifacts.ensemble_inputs import load_predictions, prediction_sources, seed_spreads, view_seconds
from competition.artifacts.manifest import write_json
from competition.data.prepared import load_prepared
from competition.ensemble.metrics import metric_named
from competition.ensemble.nested import scored_rows
from competition.ensemble.settings import chain_settings, honest_settings
from competition.ensemble.tables import blend_table, policy_table
from competition.report.terminal import markdown, seeds_line
from pipelines.cli import main
from pipelines.runner import Job, display_path

METHODS = ("equal", "best", "rank", "greedy", "bagged", "coordinate", "nelder_mead", "optuna", "stacking")


def run(job: Job) -> None:
    """members/*/fold*/views/ -> table.json, and two tables to paste"""
    params, prepared = job.params, load_prepared(job.path("data"))
    rows = load_predictions(
        job.work, params, prepared, prediction_sources(job.work, params, prepared, job.options.allow_partial)
    )
    settings, honest = chain_settings(params, prepared.competition.metric), honest_settings(params)
    metric = metric_named(settings.metric)
    job.echo(
        f"table: {len(rows.ids):,} out-of-fold rows, {len(rows.oof)} members; "
        f"every choice is cross-fitted over {len(rows.predicted_folds)} folds\n"
    )
    spreads, notes = seed_spreads(job.work, params, prepared, job.overrides)
    for note in notes:
        job.echo(f"table: {note}")
    seconds = view_seconds(job.work, params, params.members) if params.policy.seconds_limit else None
    tuned = rows.tuned_folds
    scored, optimistic = scored_rows(rows.folds, tuned)
    if optimistic:
        job.echo(
            "table: OPTIMISTIC: every fold chose hyperparameters; the scores are of all rows, for want of others\n"
        )
    elif tuned:
        job.echo(f"table: folds {list(tuned)} chose hyperparameters: scores are of the other {scored.sum():,} rows\n")
    blends = blend_table(rows.oof, rows.labels, rows.folds, settings, honest, METHODS, seconds, spreads, tuned)
    for line in markdown(blends, metric, ("equal", "best")):
        job.echo(line)
    for line in seeds_line(spreads, list(rows.oof)):
        job.echo(line)
    policies = policy_table(rows.oof, rows.labels, rows.folds, settings, honest, seconds=seconds, tuned_folds=tuned)
    job.echo("\nViews, the members weighed equally:\n")
    for line in markdown(policies, metric, ("identity",)):
        job.echo(line)
    write_json(job.path("table.json"), {"blends": blends, "policies": policies})
    job.echo(f"\ntable: {display_path(job.path('table.json'))}")


if __name__ == "__main__":
    main("table")
