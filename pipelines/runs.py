"""List the runs: trained versions of each member, with their difference from the parameters, scores, time and size."""

from competition.artifacts.runs import stored_runs
from competition.report.console_table import table_lines
from competition.report.runs import COLUMNS, NOTE, run_rows
from pipelines.cli import main
from pipelines.runner import Job


def run(job: Job) -> None:
    """members/*/*/, blend/, submissions/ledger.jsonl -> a table on the screen"""
    prepared = job.prepared()
    runs = sorted(stored_runs(job.work, job.options.member), key=lambda one: one.name)
    if not runs:
        job.echo("runs: none yet; `make train` makes one for each member")
        return
    rows = run_rows(job.work, job.submissions, prepared, job.params, job.overrides, runs)
    for line in table_lines(COLUMNS, rows, indent=0):
        job.echo(line)
    job.echo(
        f"runs: * = used with the current parameters. held-out: mean {prepared.competition.metric} of the fold models. {NOTE} "
        "`make adopt RUN=...` writes a run's parameters into the file."
    )


if __name__ == "__main__":
    main("runs")
