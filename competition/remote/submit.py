"""A submission to Kaggle, once: found again when the answer was lost, followed until it has a score or an error.

It is a file, or, where a competition takes submissions from notebooks only, a file that a kernel left.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from competition.errors import Refusal
from competition.manifest import sha256
from competition.remote.kaggle_client import PASSING, SITE, Client, KaggleRefusal, ask

Record = Callable[[str, str, float | None, float | None, str], None]


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
    return [_submission(found) for found in ask(client, "submissions", {"slug": slug}, slug)]


def tag(digest: str) -> str:
    """What marks a file in its description on Kaggle, so that it is found again. digest: sha256 of the file."""
    return f"goldfold {digest[:16]}"


def find(client: Client, slug: str, digest: str) -> Submission | None:
    """The newest submission of this very file, if Kaggle has one that did not fail in the upload."""
    return next((found for found in submissions(client, slug) if tag(digest) in found.message), None)


def refuse_when_used_up(client: Client, slug: str) -> Limits:
    """How many submissions are left; Refusal when none is. (All zero: Kaggle does not know the team yet.)"""
    found = limits(client, slug)
    if found.left == 0 and (found.today or found.total):
        raise Refusal(
            f"no submission to {slug} is left today ({found.today} were made): Kaggle counts days in UTC; "
            "submit it after midnight UTC."
        )
    return found


def submit(client: Client, slug: str, way: Way, digest: str, note: str, again: bool) -> int:
    """Send it; Kaggle's number of the submission. What Kaggle already has is not sent twice, unless `again`.

    note: for people, in front of the tag. A try whose answer was lost is looked up before the next one, so that no try
    costs two of the day's submissions.
    """
    known = {found.ref for found in submissions(client, slug) if tag(digest) in found.message}
    if known and not again:
        return max(known)
    arguments = {"slug": slug, "message": f"{note} | {tag(digest)}".strip(" |"), **way.arguments}
    for attempt in range(1, client.patience.tries + 1):
        try:
            answer = ask(client, way.action, arguments, slug, once=True)
            if answer["ref"]:
                return int(answer["ref"])
            refusal = KaggleRefusal("client", f"Kaggle gave no number for the submission ({answer['message']}).")
        except KaggleRefusal as error:
            refusal = error
        time.sleep(min(client.patience.first_wait * 2 ** (attempt - 1), client.patience.longest_wait))
        arrived = {f.ref for f in submissions(client, slug) if tag(digest) in f.message} - known
        if arrived:
            return max(arrived)
        if refusal.kind not in PASSING | {"upload"} or attempt == client.patience.tries:
            raise refusal
        client.say(f"Kaggle: {refusal} It is not in the list of submissions; try {attempt + 1}")
    raise AssertionError("patience.tries is at least 1")


def refuse_another_output(client: Client, made: Made) -> None:
    """Kaggle scores what that version of the kernel left: refuse when this is not, byte for byte, what is meant."""
    owner, slug = made.kernel.split("/")
    with tempfile.TemporaryDirectory() as folder:
        where = {"owner": owner, "slug": slug, "version": made.version, "folder": folder, "only": made.file}
        ask(client, "kernel_output", where, made.kernel)
        file = Path(folder) / made.file
        if not file.is_file() or sha256(file) != made.digest:
            what = "is not the submission in hand" if file.is_file() else "is not there (any more)"
            raise Refusal(
                f"{made.file} of version {made.version} of {made.kernel} {what}; nothing was sent. "
                "`make kernel FORCE=1` makes it anew"
            )


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


def deliver(
    client: Client,
    slug: str,
    way: Way,
    digest: str,
    note: str,
    again: bool,
    record: Record,
    seconds: float,
    shortest: float,
    longest: float,
    waiting: Callable[[float], None],
) -> Submission:
    """Submit and follow, and record each step before and after it happens. Arguments as for `submit` and `follow`.

    record: (what, ref, public, private, error), what as in the ledger: sending, submitted, scored or failed. A process
    that is killed in between leaves "sending": the file may have reached Kaggle, and `submit` will look.
    """
    record("sending", "", None, None, "")
    try:
        ref = submit(client, slug, way, digest, note, again)
    except Refusal as refusal:
        record("failed", "", None, None, str(refusal))
        raise
    record("submitted", str(ref), None, None, "")
    found = follow(client, slug, ref, seconds, shortest, longest, waiting)
    if found.status != "PENDING":
        what = "failed" if found.status == "ERROR" else "scored"
        record(what, str(ref), found.public, found.private, found.error)
    return found


def page(slug: str) -> str:
    return f"{SITE}/competitions/{slug}/submissions"


def _look(client: Client, slug: str, ref: int) -> Submission | None:
    """None right after submitting: Kaggle answers 404 for a while."""
    try:
        return _submission(ask(client, "submission", {"ref": ref}, slug))
    except KaggleRefusal as refusal:
        if refusal.kind != "missing":
            raise
        return None


def _submission(found: dict[str, str]) -> Submission:
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
