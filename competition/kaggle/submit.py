"""Send a submission to Kaggle at most once; where its answer was lost, find it in Kaggle's list.

It is a file, or, where a competition takes submissions from notebooks only, a file that a kernel left.
"""

import json
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import sha256
from competition.config.errors import UserError
from competition.kaggle.attempts import (
    UnknownOutcome,
    look_for,
    lost_reason,
    pause_before_retry,
    was_not_taken,
    with_time_to_return,
)
from competition.kaggle.client import SITE, Client, KaggleError, ask
from competition.kaggle.errors import retry_line


@dataclass(frozen=True)
class Made:
    """A submission that a kernel left among its outputs."""

    kernel: str  # owner/slug
    version: int
    file: str
    digest: str  # sha256 of the file
    asked: str  # digest of what it was to be made from: another one asks for another submission


def read_made(path: Path) -> Made | None:
    """What was noted; None where nothing (whole) was."""
    try:
        return Made(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class Way:
    """How a submission reaches Kaggle: an action of kaggle_child and its arguments."""

    action: str
    arguments: Mapping[str, Any]
    command: str  # the same, as a person would type it after `kaggle competitions submit SLUG`


def by_file(path: Path, shown: str) -> Way:
    return Way("submit", {"path": str(path)}, f"-f {shown}")


def by_kernel(made: Made) -> Way:
    told = {"kernel": made.kernel, "version": made.version, "file": made.file}
    return Way("submit_kernel", told, f"-k {made.kernel} -v {made.version} -f {made.file}")


@dataclass(frozen=True)
class Submission:
    """A submission as Kaggle has it."""

    ref: int
    file: str
    message: str
    status: str  # PENDING, COMPLETE or ERROR
    public: float | None
    private: float | None  # None until the deadline
    error: str  # Kaggle's words
    date: str


@dataclass(frozen=True)
class Limits:
    today: int  # submissions made today
    total: int
    left: int  # allowed now


def limits(client: Client, slug: str) -> Limits:
    return Limits(**ask(client, "limits", {"slug": slug}, slug))


def submissions(client: Client, slug: str) -> list[Submission]:
    """The newest hundred of this account's team."""
    return [parse_submission(found) for found in ask(client, "submissions", {"slug": slug}, slug)]


def tag(digest: str) -> str:
    """What marks a file in its description on Kaggle, so that it is found again. digest: sha256 of the file."""
    return f"goldfold {digest[:16]}"


def refuse_when_used_up(client: Client, slug: str) -> Limits:
    """How many submissions are left; UserError when none is. (All zero: Kaggle does not know the team yet.)"""
    found = limits(client, slug)
    if found.left == 0 and (found.today or found.total):
        raise UserError(
            f"no submission to {slug} is left today ({found.today} were made): Kaggle counts days in UTC; "
            "submit it after midnight UTC."
        )
    return found


def submit(
    client: Client,
    slug: str,
    way: Way,
    digest: str,
    note: str,
    again: bool,
    lag: float,
    sending: Callable[[], None] = lambda: None,
) -> int:
    """Send the file once; return Kaggle's number of the submission.

    What Kaggle already has is not sent, unless `again`. note: for people, in front of the tag. sending: called right
    before the file is sent. Only what Kaggle surely did not take is tried again. After a lost answer the list of
    submissions is read for `lag` seconds; raise UnknownOutcome if the submission is not in it.
    """
    known = {entry.ref for entry in submissions(client, slug) if tag(digest) in entry.message}
    if known and not again:
        return max(known)
    sending()
    arguments = {"slug": slug, "message": f"{note} | {tag(digest)}".strip(" |"), **way.arguments}
    for attempt in range(1, client.patience.tries + 1):
        events: list[str] = [] if way.action == "submit" else ["uploaded"]  # a kernel's file is at Kaggle already
        try:
            answer = ask(client, way.action, arguments, slug, _collect_names(events), once=True)
            if answer["ref"]:
                return int(answer["ref"])
            error = KaggleError("answer", f"Kaggle gave no number for the submission ({answer['message']})")
        except KaggleError as user_error:
            error = user_error
        if "uploaded" in events and not was_not_taken(error):
            return find_lost(client, slug, digest, known, lag, f" ({lost_reason(error)})")
        pause = pause_before_retry(client.patience, error, attempt)
        if pause is None:
            raise with_time_to_return(error, "make submit")
        client.say(retry_line(error.reason, attempt + 1, client.patience.tries, pause))
        time.sleep(pause)
    raise AssertionError("patience.tries is at least 1")


def find_lost(client: Client, slug: str, digest: str, known: Collection[int], lag: float, why: str = "") -> int:
    """The number of a submission whose answer was lost, from Kaggle's list; raise UnknownOutcome if it is not there.

    known: numbers of earlier submissions of the same file. lag: seconds for which the list is read.
    """
    client.say(f"submit: the answer to a submission was lost{why}; looking for it in Kaggle's list for {lag:.0f} s")

    def look() -> int | None:
        refs = [entry.ref for entry in submissions(client, slug) if tag(digest) in entry.message]
        return max((ref for ref in refs if ref not in known), default=None)

    reason = "it is not in the list of submissions"
    try:
        ref = look_for(look, lag, client.patience.first_wait)
    except KaggleError as error:
        ref, reason = None, f"the list of submissions cannot be read, {str(error).rstrip('.')}"
    if ref is None:
        raise UnknownOutcome(
            f"it is unknown whether Kaggle took this submission{why}: {reason}; look at {page(slug)}, `make submit` looks "
            "again, `make submit AGAIN=1` sends the file once more"
        )
    return ref


def _collect_names(events: list[str]) -> Callable[[dict[str, Any]], None]:
    return lambda event: events.append(event["event"])


def refuse_another_output(client: Client, made: Made) -> None:
    """Kaggle scores what that version of the kernel left: refuse when this is not, byte for byte, what is meant."""
    owner, slug = made.kernel.split("/")
    with tempfile.TemporaryDirectory() as folder:
        where = {"owner": owner, "slug": slug, "version": made.version, "folder": folder, "only": made.file}
        ask(client, "kernel_output", where, made.kernel)
        file = Path(folder) / made.file
        if not file.is_file() or sha256(file) != made.digest:
            what = "is not the submission in hand" if file.is_file() else "is not there (any more)"
            raise UserError(
                f"{made.file} of version {made.version} of {made.kernel} {what}; nothing was sent. `make submit` fetches "
                "it again; if it stays so, `make kernel AGAIN=1` has another one made, without training again"
            )


def page(slug: str) -> str:
    return f"{SITE}/competitions/{slug}/submissions"


def parse_submission(found: dict[str, str]) -> Submission:
    return Submission(
        int(found["ref"]),
        found["file"],
        found["message"],
        found["status"],
        _score(found["public"]),
        _score(found["private"]),
        found["error"],
        found["date"],
    )


def _score(text: str) -> float | None:
    """Scores travel as text, empty until there is one."""
    try:
        return float(text)
    except ValueError:
        return None
