"""List the runs: trained versions of each member, with their difference from the parameters, scores, time and size."""

from competition.config.errors import UserError
from competition.report.runs import COLUMNS, FEATURES_NOTE, NOTE, run_rows
from competition.workspace.runs import stored_runs
from competition.workspace.scores import trivial_text
from pipelines.terminal.output import table_lines
from pipelines.terminal.runner import Job

FOLDS, INCOMPLETE = COLUMNS.index("folds"), "incomplete"


def run(job: Job) -> None:
    """members/*/*/, blend/, submissions/ledger.jsonl -> a table on the screen"""
    member = job.options.member
    known = {*job.params.members, *job.params.external, *(one.name for one in stored_runs(job.work))}
    if member and member not in known:
        raise UserError(f"MEMBER={member}: no such member; the members are {', '.join(sorted(known))}")
    runs = sorted(stored_runs(job.work, member), key=lambda one: one.name)
    external = [name for name in job.params.external if member in ("", name)]
    if runs:
        rows = [list(row) for row in run_rows(job.workspace, job.submissions, runs)]
        for row in rows:  # a run without all its fold models, such as one whose training failed, is marked
            done, _, folds = row[FOLDS].partition("/")
            row[FOLDS] += "" if done == folds else f" {INCOMPLETE}"
        job.echo(*table_lines(COLUMNS, rows, indent=0))
        job.echo(
            f"runs: * = used with the current parameters. held-out: mean {job.prepared.competition.metric} of the fold models; "
            f"{trivial_text(job.prepared)}. {NOTE} "
            "`make adopt RUN=...` writes a run's parameters into the file."
        )
        if any(one.member.head for one in runs):
            job.echo(f"runs: {FEATURES_NOTE}")
        in_use = [row[0].endswith("*") for row in rows if INCOMPLETE in row[FOLDS]]
        if in_use:
            what = ["`make train` trains those of the runs with *"] if any(in_use) else []
            what += [] if all(in_use) else ["`make prune` lists runs that nothing uses"]
            job.echo(f"runs: incomplete = fold models are missing or being trained; {', '.join(what)}")
    elif not external or any(member in ("", name) for name in job.params.members):
        job.echo("runs: none yet; `make train` makes one for each member")
    if external:
        job.echo(f"runs: trained elsewhere, without runs: {', '.join(external)}")
