"""Send a submission to Kaggle at most once; if the answer is lost, find the submission in Kaggle's list.

A submission is a local file or, in competitions that accept submissions from notebooks only, an output of a kernel.
"""

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from competition.config.errors import UserError
from competition.files.manifest import sha256
from competition.kaggle import answers
from competition.kaggle.attempts import LostAnswer, UnknownOutcome, poll, send_at_most_once
from competition.kaggle.client import Answer, Client, ask, call, kernel_fields
from competition.kaggle.errors import SENTENCES, SITE, KaggleError

PAGE = f"{SITE}/competitions/{{}}/submissions"  # of a slug


@dataclass(frozen=True)
class KernelSubmission:
    """A submission file among the outputs of a kernel."""

    kernel: str  # owner/slug
    version: int
    file: str
    digest: str  # sha256 of the file
    request_digest: str  # of the request (models and parameters) that the file was made for


@dataclass(frozen=True)
class SubmissionRequest:
    """A submission to send."""

    slug: str  # of the competition
    source: Path | KernelSubmission  # the local file, or the output of a kernel
    digest: str  # sha256 of the file
    note: str  # description for people, followed by the tag
    resend: bool  # send the file although Kaggle has it already
    listing_lag: float  # seconds for which a submission whose answer was lost is looked for


@dataclass(frozen=True)
class Submission:
    """A submission as returned by Kaggle."""

    ref: str  # Kaggle's number; "" = it returned none
    file: str
    message: str
    status: str  # PENDING, COMPLETE, ERROR, or another word of Kaggle
    public: float | None  # None: none yet, or no finite number
    private: float | None  # None until the deadline
    error: str  # Kaggle's message
    date: str  # ISO 8601, UTC

    @property
    def is_finished(self) -> bool:
        """Return True if Kaggle has scored or rejected it. A status that is not known here counts as unfinished."""
        return self.status in ("COMPLETE", "ERROR")


@dataclass(frozen=True)
class Limits:
    """Numbers of submissions; None = Kaggle does not say."""

    today: int | None  # made today
    total: int | None
    left: int | None  # allowed now
    by_total: bool  # the total number is limited, so that a new day adds none


def limits(client: Client, slug: str) -> Limits:
    """Read how many submissions this account's team has made and may make."""
    answer = call(client, slug, "competitions", "GetSubmissionLimits", competitionName=slug)
    today, total, left = (answers.whole(answer.get(name)) for name in ("numToday", "numTotal", "numAllowedNow"))
    return Limits(today, total, left, by_total=answer.get("limitedByTotal") is True)


def submissions(client: Client, slug: str, newest: bool = False) -> list[Submission]:
    """The submissions of this account's team, the newest first.  newest: only Kaggle's first page."""
    return [parse_submission(fields) for fields in ask(client, "submissions", {"slug": slug, "newest": newest}, slug)]


def tag(digest: str) -> str:
    """Tag that identifies a file in its description on Kaggle. digest: sha256 of the file."""
    return f"goldfold {digest[:16]}"


def refuse_when_used_up(client: Client, slug: str) -> Limits:
    """Return the submission limits; UserError if none is left.

    All limits are zero for a team without submissions, which Kaggle does not know yet.
    """
    limit = limits(client, slug)
    if limit.left == 0 and (limit.today or limit.total):
        kind, count = ("total", limit.total) if limit.by_total else ("daily", limit.today)
        reason = f"{'all' if count is None else count} were made"
        raise KaggleError(kind, SENTENCES[kind].format(slug=slug, reason=reason))
    return limit


def submit(client: Client, request: SubmissionRequest, on_send: Callable[[], None] = lambda: None) -> str:
    """Send the file once; return Kaggle's number of the submission.

    A file that Kaggle already has is not sent, unless request.resend. Retried only if Kaggle certainly did not accept
    it. After a lost answer the list of submissions is polled; raise UnknownOutcome if the submission is not in it.
    on_send: called immediately before the file is sent.
    """
    slug, source = request.slug, request.source
    earlier_refs = _refs(submissions(client, slug), request)
    if earlier_refs and not request.resend:
        return newest_ref(earlier_refs)
    on_send()
    message = f"{request.note} | {tag(request.digest)}".strip(" |")
    events: list[str] = []  # of the last attempt

    def send() -> str:
        # A kernel's file is at Kaggle already.
        events[:] = ["uploaded"] if isinstance(source, KernelSubmission) else []
        if isinstance(source, KernelSubmission):
            owner, _, kernel = source.kernel.partition("/")
            fields = {"kernelOwner": owner, "kernelSlug": kernel, "kernelVersion": source.version}
            fields |= {"fileName": source.file, "submissionDescription": message, "competitionName": slug}
            answer = call(client, slug, "competitions", "CreateCodeSubmission", once=True, **fields)
        else:
            arguments = {"slug": slug, "path": str(source), "message": message}
            answer = ask(client, "submit", arguments, slug, lambda event: events.append(event["event"]), once=True)
        ref = parse_submission(answer).ref
        if not ref:
            problem = f"Kaggle gave no number for the submission ({answers.text(answer.get('message'))})"
            raise KaggleError("answer", problem)
        return ref

    try:
        return send_at_most_once(client, send, lambda error: "uploaded" not in events)
    except LostAnswer as lost:
        return find_lost(client, request, earlier_refs, f" ({lost})")


def find_lost(client: Client, request: SubmissionRequest, earlier_refs: Collection[str], reason: str = "") -> str:
    """Find the number of a submission whose answer was lost in Kaggle's list; raise UnknownOutcome if it is missing.

    earlier_refs: numbers of earlier submissions of the same file.  reason: of the loss, in parentheses, for messages.
    """
    client.print_line(
        f"submit: the answer to a submission was lost{reason}; looking for it in Kaggle's list for "
        f"{request.listing_lag:.0f} s"
    )
    listed_refs = lambda: _refs(submissions(client, request.slug, newest=True), request)  # noqa: E731
    new_ref = lambda: newest_ref(listed_refs().difference(earlier_refs)) or None  # noqa: E731
    ref, error = poll(new_ref, request.listing_lag, client.policy.first_wait)
    if ref is None:
        problem = f"Kaggle's list cannot be read, {error}" if error else "it is not in the list of submissions"
        raise UnknownOutcome(
            f"it is unknown whether Kaggle accepted this submission{reason}: {problem}; see {PAGE.format(request.slug)}. "
            "`make submit` looks again, `make submit AGAIN=1` sends the file once more"
        )
    return ref


def _refs(listed: Sequence[Submission], request: SubmissionRequest) -> set[str]:
    """Numbers of the submissions of this file among those that Kaggle lists."""
    of_file = [entry for entry in listed if tag(request.digest) in entry.message]
    if of_file and not any(entry.ref for entry in of_file) and not request.resend:
        raise UnknownOutcome(
            f"Kaggle has this file, but returns no number for it: see its score at {PAGE.format(request.slug)}; `make submit "
            "AGAIN=1` sends the file once more"
        )
    return {entry.ref for entry in of_file if entry.ref}


def newest_ref(refs: Collection[str]) -> str:
    """The highest of Kaggle's numbers, "" of none."""
    return max(refs, key=lambda ref: (len(ref), ref), default="")


def refuse_another_output(client: Client, output: KernelSubmission) -> None:
    """UserError unless the kernel's output on Kaggle, which Kaggle would score, has the digest of `output`."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = kernel_fields(output.kernel, output.version)
        ask(client, "kernel_output", {"kernel": kernel, "folder": folder, "only": output.file}, output.kernel)
        file = Path(folder) / output.file
        if not file.is_file() or sha256(file) != output.digest:
            problem = "differs from the selected submission" if file.is_file() else "is missing on Kaggle"
            raise UserError(
                f"{output.file} of version {output.version} of {output.kernel} {problem}; nothing was sent. `make submit` "
                "checks it again; if that fails, `make kernel AGAIN=1` makes another one, without training again"
            )


def parse_submission(fields: Answer) -> Submission:
    """Submission from Kaggle's answer. A score that is no finite number counts as none."""
    names = ("fileName", "description", "status", "errorDescription", "publicScore", "privateScore")
    file, message, status, error, *scores = (answers.text(fields.get(name)) for name in names)
    status = status.removeprefix("SUBMISSION_STATUS_").upper() or "PENDING"
    public, private = (answers.decimal(score) for score in scores)
    number = answers.whole(fields.get("ref"))
    ref = answers.text(fields.get("ref")) if number is None else str(number or "")
    date = answers.utc_time(fields.get("date"))
    return Submission(ref, file, message, status, public, private, error, date)
