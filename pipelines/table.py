"""Every way to blend and every use of views by one yardstick: on the rows it was chosen on, honest, standard error."""

from competition.data.prepared import load_prepared
from competition.ensemble.metrics import metric_named
from competition.ensemble.nested import scored_rows
from competition.ensemble.settings import chain_settings, honest_settings
from competition.ensemble.tables import blend_table, policy_table
from competition.gather import gather, seed_spreads, sources, view_seconds
from competition.manifest import write_json
from competition.report.words import markdown, seeds_line
from pipelines.stage import Job, add_partial, main, shown

METHODS = ("equal", "best", "rank", "greedy", "bagged", "coordinate", "nelder_mead", "optuna", "stacking")


def run(job: Job) -> None:
    """members/*/fold*/views/ -> table.json, and two tables to paste"""
    params, prepared = job.params, load_prepared(job.path("data"))
    rows = gather(job.work, params, prepared, sources(job.work, params, prepared, job.options.allow_partial))
    settings, honest = chain_settings(params, prepared.competition.metric), honest_settings(params)
    metric = metric_named(settings.metric)
    job.say(
        f"table: {len(rows.ids):,} out-of-fold rows, {len(rows.oof)} members; "
        f"every choice is cross-fitted over {len(rows.predicted_folds)} folds\n"
    )
    spreads, notes = seed_spreads(job.work, params, prepared, job.overrides)
    for note in notes:
        job.say(f"table: {note}")
    seconds = view_seconds(job.work, params, params.members) if params.policy.seconds_limit else None
    tuned = rows.tuned_folds
    scored, optimistic = scored_rows(rows.folds, tuned)
    if optimistic:
        job.say("table: OPTIMISTIC: every fold chose hyperparameters; the scores are of all rows, for want of others\n")
    elif tuned:
        job.say(f"table: folds {list(tuned)} chose hyperparameters: scores are of the other {scored.sum():,} rows\n")
    blends = blend_table(rows.oof, rows.labels, rows.folds, settings, honest, METHODS, seconds, spreads, tuned)
    for line in markdown(blends, metric, ("equal", "best")):
        job.say(line)
    for line in seeds_line(spreads, list(rows.oof)):
        job.say(line)
    policies = policy_table(rows.oof, rows.labels, rows.folds, settings, honest, seconds=seconds, tuned_folds=tuned)
    job.say("\nViews, the members weighed equally:\n")
    for line in markdown(policies, metric, ("identity",)):
        job.say(line)
    write_json(job.path("table.json"), {"blends": blends, "policies": policies})
    job.say(f"\ntable: {shown(job.path('table.json'))}")


if __name__ == "__main__":
    main(run, add_partial)
