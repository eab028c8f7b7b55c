"""Send a submission and wait for its score, with a record in the ledger before and after each step."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from competition.config.errors import UserError
from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.client import Client, ask
from competition.kaggle.errors import KaggleError
from competition.kaggle.submit import Submission, SubmissionRequest, find_lost, parse_submission, submit
from competition.submission.ledger import What

Record = Callable[[What, str, float | None, float | None, str], None]


@dataclass(frozen=True)
class ScoreWait:
    """How long and how often to ask for a score, in seconds."""

    limit: float
    first_pause: float
    longest_pause: float
    on_wait: Callable[[float], None] = lambda seconds: None  # called with the seconds waited so far


def deliver(
    client: Client,
    request: SubmissionRequest,
    lost_after: Collection[int] | None,
    record: Record,
    score_wait: ScoreWait,
) -> Submission:
    """Submit and wait for the score; record each step before and after it happens.

    lost_after: None, or if the file was being sent before, and its outcome was not recorded: the numbers of its
    submissions before that. It is then looked for, and only sent with request.resend.
    record: (what, ref, public, private, error), what: see What. A killed
    process leaves "sending" as the last record; the next one then looks for the submission instead of sending it.
    """
    is_sending = False

    def on_send() -> None:
        nonlocal is_sending
        is_sending = True
        record("sending", "", None, None, "")

    try:
        is_lost = lost_after is not None and not request.resend
        ref = find_lost(client, request, lost_after or ()) if is_lost else submit(client, request, on_send)
    except UnknownOutcome:
        raise  # "sending" stays the last record
    except UserError as error:
        if is_sending:
            record("failed", "", None, None, str(error))
        raise
    record("submitted", str(ref), None, None, "")
    submission = follow(client, request.slug, ref, score_wait)
    if submission.status != "PENDING":
        record(outcome(submission), str(ref), submission.public, submission.private, submission.error)
    return submission


def outcome(submission: Submission) -> What:
    """The ledger's state for a submission that is no longer PENDING."""
    return "failed" if submission.status == "ERROR" else "scored"


def follow(client: Client, slug: str, ref: int, score_wait: ScoreWait) -> Submission:
    """Poll until the submission has a score or an error; after score_wait.limit return it still PENDING."""
    started, pause = time.monotonic(), score_wait.first_pause
    while True:
        submission = _find(client, slug, ref)
        waited = time.monotonic() - started
        if submission is not None and submission.status != "PENDING":
            return submission
        if waited >= score_wait.limit:
            return submission or Submission(ref, "", "", "PENDING", None, None, "", "")
        score_wait.on_wait(waited)
        time.sleep(min(pause, max(0.0, score_wait.limit - waited)))
        pause = min(score_wait.longest_pause, pause * 1.5)


def _find(client: Client, slug: str, ref: int) -> Submission | None:
    """None right after submitting: Kaggle answers 404 for a while."""
    try:
        return parse_submission(ask(client, "submission", {"ref": ref}, slug))
    except KaggleError as error:
        if error.kind != "missing":
            raise
        return None
