"""List submissions with expected score, Kaggle score and the 95 % interval of their difference."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from competition.config.errors import UserError, counted, first_few
from competition.ensemble.external_check import doubts_of, joined_notes
from competition.kaggle import submit
from competition.kaggle.client import Client, competition_slug
from competition.kaggle.submit import Submission
from competition.prepare.adapter_types import Competition
from competition.report.repeated_choices import choices_lines
from competition.report.stored_blends import blend_of
from competition.report.terminal import baseline_text
from competition.submission import ledger, sending
from competition.workspace.scores import trivial_text
from pipelines.execution.selection import honest_score_text
from pipelines.terminal.job import Job, kaggle_client
from pipelines.terminal.output import display_path, table_lines

COLUMNS = ("digest", "ref", "made", "members", "cv", "honest", "public", "private", "gap", "noise", "state")


def run(job: Job) -> None:
    """submissions/ledger.jsonl, Kaggle's list -> a table on the screen; what is new is added to the ledger

    Raises UserError, after the table, if Kaggle cannot be read.
    """
    path = job.submissions / "ledger.jsonl"
    on_kaggle: list[Submission] = []
    notes: list[str] = []
    error: UserError | None = None
    described, slug = job.path("data", "competition.json"), ""
    prepared_for = Competition.load(described) if described.exists() else None
    metric = job.params.competition.metric or (prepared_for.metric if prepared_for else "")
    if prepared_for and prepared_for.slug:  # else nothing is prepared, or it is not on Kaggle
        slug, client = competition_slug(prepared_for.slug), kaggle_client(job)
        try:
            on_kaggle = submit.submissions(client, slug)
            update_ledger(job, client, slug, on_kaggle)
            limits = submit.limits(client, slug)
            left, today = ("an unknown number" if n is None else n for n in (limits.left, limits.today))
            notes.append(f"{left} left today, {today} made")
        except UserError as user_error:
            error = user_error
    table = table_rows(job, slug, on_kaggle, metric)
    if table:
        job.echo(*table_lines(list(table[0]), [[row.get(name, "-") for name in table[0]] for row in table], indent=0))
        share = job.params.kaggle.public_share
        job.echo(
            "cv: on the rows that chose the blend, optimistic; honest: on rows that chose nothing",
            f"gap: public minus honest; noise: 95 % interval of the gap by chance, if {share:.0%} of the test rows "
            "count (kaggle.public_share)",
        )
        own = ledger.of_competition(ledger.read(path), job.params.competition.name, slug)
        rows = ledger.submission_states(own)
        job.echo(*doubt_lines(rows, job.path("blends")), *equal_file_lines(own.entries))
        if on_rows := ledger.honest_rows_text(rows):
            job.echo(on_rows)
        if job.path("data", "manifest.json").exists():
            job.echo(
                baseline_text(job.prepared, job.path("blends"), rows[-1].entry) if rows else trivial_text(job.prepared)
            )
        job.echo(*choices_lines(job.submissions, job.params))
    else:
        others = sorted({entry.competition for entry in ledger.read(path).entries})
        there = f", but those of {first_few(others)}, whose PARAMS or SET shows them" if others else ""
        name = job.params.competition.name
        job.echo(f"submissions: none of {name} in {display_path(path)}{there}; `make predict` writes one")
    if unreadable := ledger.read(path).unreadable:
        notes.insert(0, f"{counted(unreadable, 'unreadable line')} of {display_path(path)} left unchanged")
    job.echo(*(f"submissions: {note}" for note in notes))
    if error is not None:
        content = "complete, but today's limit is missing" if on_kaggle else "the local ledger's"
        raise UserError(f"the table is {content}: {error}")


def doubt_lines(rows: Sequence[ledger.SubmissionState], blends: Path) -> list[str]:
    """Why the honest scores of submissions are doubted: what was noted of the last blend that gave the file."""
    digests_of: dict[str, list[str]] = {}
    for entry in (row.entry for row in rows if row.entry.is_doubted):
        folder = blend_of(blends, entry)
        text = "its blend is no longer stored"
        if folder is not None:
            scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
            text = "; ".join(joined_notes(doubts_of(scores)))
        digests_of.setdefault(text, []).append(entry.digest[:12])
    return [f"DOUBTED {', '.join(digests)}: {text}" for text, digests in digests_of.items()]


def equal_file_lines(entries: Sequence[ledger.Entry]) -> list[str]:
    """Of each file that blends with different honest scores gave: all of these scores, of which the table has the last."""
    scores_of: dict[str, list[str]] = {}
    for entry in entries:
        scores, score = scores_of.setdefault(entry.digest[:12], []), honest_score_text(entry)
        scores[:] = [*(one for one in scores if one != score), score]
    return [
        f"{digest} is the file of several blends ({', '.join(scores)}); the table has the last"
        for digest, scores in scores_of.items()
        if len(scores) > 1
    ]


def update_ledger(job: Job, client: Client, slug: str, on_kaggle: Sequence[Submission]) -> None:
    """Add new scores, errors and unrecorded submissions from Kaggle's list to the ledger."""
    path = job.submissions / "ledger.jsonl"
    by_ref = {submission.ref: submission for submission in on_kaggle}
    for row in ledger.submission_states(ledger.of_competition(ledger.read(path), job.params.competition.name, slug)):
        digest, ref = row.entry.digest, row.ref
        if row.state == "sending" or not ref:  # Kaggle may have it: the response was lost, or another machine sent it
            lost = [s.ref for s in on_kaggle if submit.tag(digest) in s.message and s.ref not in row.refs]
            ref = submit.newest_ref(lost)
            if not ref:
                continue
            ledger.append(path, ledger.Event(digest, "submitted", ref, slug=slug))
        submission = by_ref.get(ref)
        if row.state == "submitted" or ref != row.ref:
            if submission is None:  # not in Kaggle's list
                submission = sending.follow(client, slug, ref, sending.ScoreWait(0, 1, 1))
            if submission.is_finished:
                sending.record_result(path, digest, slug, submission)
        elif submission is not None and submission.is_finished:
            scores = ((submission.public, row.public_score), (submission.private, row.private_score))
            has_new_score = any(new is not None and new != old for new, old in scores)
            if has_new_score or sending.outcome(submission) != row.state:
                # The deadline is over, or Kaggle has scored it again.
                sending.record_result(path, digest, slug, submission)


def table_rows(job: Job, slug: str, on_kaggle: Sequence[Submission], metric: str) -> list[dict[str, str]]:
    """One row for each time a ledger entry was submitted, and one for each submission made elsewhere.

    metric: of the parameters, else of the competition; "" before it is prepared.
    """
    stored, rows = ledger.read(job.submissions / "ledger.jsonl"), []
    by_ref = {submission.ref: submission for submission in reversed(on_kaggle) if submission.ref}  # the oldest first
    for row in ledger.submission_states(ledger.of_competition(stored, job.params.competition.name, slug)):
        refs, tag = row.refs - {row.ref}, submit.tag(row.entry.digest)
        refs_of_digest = [ref for ref, s in by_ref.items() if ref in refs or tag in s.message]
        last = by_ref.pop(row.ref, None)
        for ref in refs_of_digest:
            if (other := by_ref.pop(ref, None)) is not None:  # another submission of the same file
                other_row = replace(row, ref=other.ref, state=sending.outcome(other), error=other.error)
                rows.append(replace(other_row, public_score=other.public, private_score=other.private))
        if row.state == "sending":
            row = replace(row, state="sending: outcome unknown, `make submit` looks for it")
        elif row.state == "submitted" and last is not None and last.error:  # its status is unknown
            row = replace(row, error=last.error)
        rows.append(row)
    rows = ledger.with_local_grades(rows, job.path("grades.json"))
    of_kaggle = metric or (rows[-1].entry.metric if rows else "")
    pairs = zip(rows, ledger.table(rows, job.params.kaggle.public_share, of_kaggle), strict=True)
    ledger_lines = [{"digest": line["digest"], "ref": row.ref or "-", **line} for row, line in pairs]
    unnumbered = [submission for submission in on_kaggle if not submission.ref]
    for submission in (*by_ref.values(), *unnumbered):  # made elsewhere: all values are from Kaggle
        scores = {"public": submission.public, "private": submission.private}
        line = dict.fromkeys(COLUMNS, "-") | {
            "ref": submission.ref or "-",
            "made": submission.date[:16],
            "members": f"{submission.file} (made elsewhere)",
            **{name: f"{score:.5f}" for name, score in scores.items() if score is not None},
            "state": sending.outcome(submission) + (f": {submission.error}" if submission.error else ""),
        }
        ledger_lines.append(line)
    return ledger_lines
