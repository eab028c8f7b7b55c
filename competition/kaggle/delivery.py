"""A submission from the first record in the ledger to its score or Kaggle's error."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from competition.config.errors import UserError
from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.client import Client, KaggleError, ask
from competition.kaggle.submit import Submission, Way, find_lost, parse_submission, submit

Record = Callable[[str, str, float | None, float | None, str], None]


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    score: float  # to wait for a score
    shortest: float  # between the first two questions for it
    longest: float  # between two later ones
    lag: float  # for which a submission whose answer was lost is looked for


@dataclass(frozen=True)
class Earlier:
    """What the ledger knows of earlier submissions of the same file."""

    refs: frozenset[int]
    unresolved: bool  # the last one was being sent, and its outcome was never noted


def deliver(
    client: Client,
    slug: str,
    way: Way,
    digest: str,
    note: str,
    again: bool,
    earlier: Earlier,
    record: Record,
    timing: Timing,
    waiting: Callable[[float], None],
) -> Submission:
    """Submit and follow, and record each step before and after it happens. Arguments as for `submit` and `follow`.

    record: (what, ref, public, private, error), what as in the ledger: sending, submitted, scored or failed. A process
    that is killed in between leaves "sending", and the next one looks for the submission instead of sending it.
    """
    started = False

    def sending() -> None:
        nonlocal started
        started = True
        record("sending", "", None, None, "")

    try:
        if earlier.unresolved and not again:
            ref = find_lost(client, slug, digest, earlier.refs, timing.lag)
        else:
            ref = submit(client, slug, way, digest, note, again, timing.lag, sending)
    except UnknownOutcome:
        raise  # "sending" stays the last event
    except UserError as user_error:
        if started:
            record("failed", "", None, None, str(user_error))
        raise
    record("submitted", str(ref), None, None, "")
    submission = follow(client, slug, ref, timing.score, timing.shortest, timing.longest, waiting)
    if submission.status != "PENDING":
        record(outcome(submission), str(ref), submission.public, submission.private, submission.error)
    return submission


def outcome(submission: Submission) -> Literal["failed", "scored"]:
    """The ledger's word for a submission that is no longer PENDING."""
    return "failed" if submission.status == "ERROR" else "scored"


def follow(
    client: Client,
    slug: str,
    ref: int,
    seconds: float,
    shortest: float,
    longest: float,
    waiting: Callable[[float], None],
) -> Submission:
    """Ask until the submission has a score or an error, or `seconds` are over (then it is still PENDING).

    shortest, longest: seconds between two questions, growing. waiting: told the seconds waited so far.
    """
    started, pause = time.monotonic(), shortest
    while True:
        found = _look(client, slug, ref)
        waited = time.monotonic() - started
        if found is not None and found.status != "PENDING":
            return found
        if waited >= seconds:
            return found or Submission(ref, "", "", "PENDING", None, None, "", "")
        waiting(waited)
        time.sleep(min(pause, max(0.0, seconds - waited)))
        pause = min(longest, pause * 1.5)


def _look(client: Client, slug: str, ref: int) -> Submission | None:
    """None right after submitting: Kaggle answers 404 for a while."""
    try:
        return parse_submission(ask(client, "submission", {"ref": ref}, slug))
    except KaggleError as user_error:
        if user_error.kind != "missing":
            raise
        return None
