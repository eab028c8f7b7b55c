"""List submissions with expected score, Kaggle score and the 95 % interval of their difference."""

from collections.abc import Sequence
from dataclasses import replace

from competition.config.errors import UserError
from competition.kaggle import submit
from competition.kaggle.client import Client
from competition.kaggle.submit import Submission
from competition.prepare.competition import Competition
from competition.report.console_table import table_lines
from competition.report.repeated_choices import choices_lines
from competition.submission import delivery, ledger
from pipelines.terminal.output import display_path, printable
from pipelines.terminal.runner import Job, kaggle_client

COLUMNS = ("digest", "ref", "made", "members", "cv", "honest", "public", "private", "gap", "noise", "state")


def run(job: Job) -> None:
    """submissions/ledger.jsonl, Kaggle's list -> a table on the screen; what is new is added to the ledger"""
    path = job.submissions / "ledger.jsonl"
    on_kaggle: list[Submission] = []
    notes: list[str] = []
    described = job.path("data", "competition.json")
    if described.exists() and (slug := Competition.load(described).slug):  # else nothing is prepared, or not on Kaggle
        client = kaggle_client(job, tries=1)
        try:
            on_kaggle = submit.submissions(client, slug)
            update_ledger(job, client, slug, on_kaggle)
        except UserError as user_error:
            notes.append(f"could not read Kaggle's list: {user_error}")
        try:
            limits = submit.limits(client, slug)
            notes.append(f"{limits.left} left today, {limits.today} made")
        except UserError as user_error:
            notes.append(f"could not read how many are left today: {user_error}")
    table = table_rows(job, on_kaggle)
    if table:
        job.echo(*table_lines(list(table[0]), [[row[name] for name in table[0]] for row in table], indent=0))
        share = job.params.kaggle.public_share
        job.echo(
            f"gap: public minus honest; noise: 95 % interval of the gap by chance, if {share:.0%} of the test rows "
            "count (kaggle.public_share)"
        )
        prepared = job.prepared if job.path("data", "manifest.json").exists() else None
        job.echo(*choices_lines(job.work, job.submissions, job.params, prepared))
    else:
        job.echo(
            f"submissions: none of {job.params.competition.name} in {display_path(path)}; `make predict` writes one"
        )
    if unreadable := ledger.read(path).unreadable:
        notes.insert(0, f"{unreadable} lines of {display_path(path)} cannot be read and were left unchanged")
    job.echo(*(f"submissions: {note}" for note in notes))


def ledger_rows(job: Job) -> list[ledger.Row]:
    return ledger.of_competition(ledger.read(job.submissions / "ledger.jsonl"), job.params.competition.name)


def update_ledger(job: Job, client: Client, slug: str, on_kaggle: Sequence[Submission]) -> None:
    """Add new scores, errors and unrecorded submissions from Kaggle's list to the ledger."""
    entries = ledger.read(job.submissions / "ledger.jsonl")
    by_ref = {submission.ref: submission for submission in on_kaggle}
    for row in ledger_rows(job):
        digest, ref = row.entry.digest, row.ref
        if row.state == "sending" or not ref:  # Kaggle may have it: the response was lost, or another machine sent it
            refs = ledger.refs(entries, digest)
            unrecorded_refs = [s.ref for s in on_kaggle if submit.tag(digest) in s.message and s.ref not in refs]
            if not unrecorded_refs:
                continue
            ref = str(max(unrecorded_refs))
            record(job, digest, "submitted", Submission(int(ref), "", "", "PENDING", None, None, "", ""))
        submission = by_ref.get(int(ref))
        if row.state == "submitted" or ref != row.ref:
            if submission is None:  # older than the first page of the list
                submission = delivery.follow(client, slug, int(ref), delivery.ScoreWait(0, 1, 1))
            if submission.status != "PENDING":
                record(job, digest, delivery.outcome(submission), submission)
        elif submission is not None and submission.private is not None and row.private_score is None:
            record(job, digest, "scored", submission)  # the deadline is over


def record(job: Job, digest: str, what: ledger.What, submission: Submission) -> None:
    path, ref = job.submissions / "ledger.jsonl", str(submission.ref)
    ledger.append_event(path, digest, what, ref, submission.public, submission.private, submission.error)


def table_rows(job: Job, on_kaggle: Sequence[Submission]) -> list[dict[str, str]]:
    """One row for each time a ledger entry was submitted, and one for each submission made elsewhere."""
    entries, rows = ledger.read(job.submissions / "ledger.jsonl"), []
    by_ref = {submission.ref: submission for submission in reversed(on_kaggle)}  # the oldest first
    for row in ledger_rows(job):
        refs = ledger.refs(entries, row.entry.digest) - {int(row.ref or 0)}
        refs_of_digest = [ref for ref, s in by_ref.items() if ref in refs or submit.tag(row.entry.digest) in s.message]
        by_ref.pop(int(row.ref or 0), None)
        rows += [with_submission(row, by_ref.pop(ref)) for ref in refs_of_digest if ref in by_ref]
        state = "sending: outcome unknown, `make submit` looks for it" if row.state == "sending" else row.state
        rows.append(replace(row, state=state))
    pairs = zip(rows, ledger.table(rows, job.params.kaggle.public_share), strict=True)
    ledger_lines = [{"digest": line["digest"], "ref": row.ref or "-", **line} for row, line in pairs]
    return ledger_lines + [foreign_line(submission) for submission in by_ref.values()]


def with_submission(row: ledger.Row, submission: Submission) -> ledger.Row:
    """The ledger row with state and scores of another submission of the same file."""
    return replace(
        row,
        ref=str(submission.ref),
        state=state_of(submission),
        public_score=submission.public,
        private_score=submission.private,
        error=submission.error,
    )


def foreign_line(submission: Submission) -> dict[str, str]:
    """Row of a submission of this team that is not in the ledger; all values are from Kaggle."""
    scores = {"public": submission.public, "private": submission.private}
    error = f": {printable(submission.error)}" if submission.error else ""
    return dict.fromkeys(COLUMNS, "-") | {
        "ref": str(submission.ref),
        "made": submission.date[:16],
        "members": f"{printable(submission.file)} (made elsewhere)",
        **{name: f"{score:.5f}" for name, score in scores.items() if score is not None},
        "state": f"{state_of(submission)}{error}",
    }


def state_of(submission: Submission) -> str:
    return "submitted" if submission.status == "PENDING" else delivery.outcome(submission)
