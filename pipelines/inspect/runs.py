"""List the runs: trained versions of each member, with their difference from the parameters, scores, time and size."""

from competition.report.runs import COLUMNS, NOTE, run_rows
from competition.workspace.runs import stored_runs
from competition.workspace.scores import trivial_text
from pipelines.terminal.output import table_lines
from pipelines.terminal.runner import Job

FOLDS, INCOMPLETE = COLUMNS.index("folds"), "incomplete"


def run(job: Job) -> None:
    """members/*/*/, blend/, submissions/ledger.jsonl -> a table on the screen"""
    prepared = job.prepared
    runs = sorted(stored_runs(job.work, job.options.member), key=lambda one: one.name)
    if not runs:
        job.echo("runs: none yet; `make train` makes one for each member")
        return
    rows = [list(row) for row in run_rows(job.workspace, job.submissions, runs)]
    for row in rows:  # a run without all its fold models, such as one whose training failed, is marked
        done, _, folds = row[FOLDS].partition("/")
        row[FOLDS] += "" if done == folds else f" {INCOMPLETE}"
    job.echo(*table_lines(COLUMNS, rows, indent=0))
    job.echo(
        f"runs: * = used with the current parameters. held-out: mean {prepared.competition.metric} of the fold models; "
        f"{trivial_text(prepared)}. {NOTE} "
        "`make adopt RUN=...` writes a run's parameters into the file."
    )
    if any(INCOMPLETE in row[FOLDS] for row in rows):
        job.echo(
            "runs: incomplete = fold models are missing; `make train` trains those of the runs with *, `make prune FORCE=1` removes "
            "the other runs that no submission uses"
        )
