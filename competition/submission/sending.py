"""Send a submission and wait for its score, with a record in the ledger before and after each step."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from competition.config.errors import UserError
from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.client import Client, call
from competition.kaggle.errors import KaggleError
from competition.kaggle.submit import (
    Submission,
    SubmissionRequest,
    find_lost,
    parse_submission,
    submissions,
    submit,
)
from competition.submission.ledger import Event, What, append, read


@dataclass(frozen=True)
class ScoreWait:
    """How long and how often to ask for a score, in seconds."""

    limit: float
    first_pause: float
    longest_pause: float
    on_wait: Callable[[float], None] = lambda seconds: None  # called with the seconds waited so far


def send(client: Client, request: SubmissionRequest, ledger_path: Path, score_wait: ScoreWait) -> Submission:
    """Submit and wait for the score; record each step before and after it happens.

    A killed process leaves "sending" as the last event; the next one then looks for the submission, which has none of the earlier
    numbers, and only sends it with request.resend.
    """
    events = [e for e in read(ledger_path).events if e.digest == request.digest and e.slug in ("", request.slug)]
    is_lost = bool(events) and events[-1].what == "sending" and not request.resend
    recorded: list[What] = []

    def record(what: What, ref: str = "", error: str = "") -> None:
        append(ledger_path, Event(request.digest, what, ref, error=error, slug=request.slug))
        recorded.append(what)

    try:
        earlier_refs, on_send = {event.ref for event in events if event.ref}, partial(record, "sending")
        ref = find_lost(client, request, earlier_refs) if is_lost else submit(client, request, on_send)
    except UnknownOutcome:
        raise  # "sending" stays the last event
    except UserError as error:
        if recorded:
            record("failed", error=str(error))
        raise
    record("submitted", ref)
    submission = follow(client, request.slug, ref, score_wait)
    if submission.is_finished:
        record_result(ledger_path, request.digest, request.slug, submission)
    return submission


def record_result(ledger_path: Path, digest: str, slug: str, submission: Submission) -> None:
    """Append state, scores and error of a submission of the file with this digest to the ledger."""
    values = (submission.ref, submission.public, submission.private, submission.error)
    append(ledger_path, Event(digest, outcome(submission), *values, slug=slug))


def outcome(submission: Submission) -> What:
    """The ledger's state for a submission."""
    if not submission.is_finished:
        return "submitted"
    return "failed" if submission.status == "ERROR" else "scored"


def follow(client: Client, slug: str, ref: str, score_wait: ScoreWait) -> Submission:
    """Poll until the submission has a score or an error; after score_wait.limit return it unfinished."""
    started, pause = time.monotonic(), score_wait.first_pause
    while True:
        submission = None
        if not ref.isdecimal():  # only Kaggle's list knows such a number
            submission = next((entry for entry in submissions(client, slug) if entry.ref == ref), None)
        else:
            try:
                submission = parse_submission(call(client, slug, "competitions", "GetSubmission", ref=int(ref)))
            except KaggleError as error:
                if error.kind != "missing":  # right after submitting, Kaggle answers 404 for a while
                    raise
        waited = time.monotonic() - started
        if submission is not None and submission.is_finished:
            return submission
        if waited >= score_wait.limit:
            return submission or Submission(ref, "", "", "PENDING", None, None, "", "")
        score_wait.on_wait(waited)
        time.sleep(min(pause, max(0.0, score_wait.limit - waited)))
        pause = min(score_wait.longest_pause, pause * 1.5)
