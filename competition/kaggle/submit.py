"""Send a submission to Kaggle at most once; if the answer is lost, find the submission in Kaggle's list.

A submission is a local file or, in competitions that accept submissions from notebooks only, an output of a kernel.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from competition.config.errors import UserError, counted
from competition.files.manifest import sha256
from competition.kaggle import answers
from competition.kaggle.attempts import LostAnswer, UnknownOutcome, had_no_effect, poll, send_at_most_once
from competition.kaggle.client import Client, ask
from competition.kaggle.errors import SITE, KaggleError

KNOWN_STATUSES = ("PENDING", "COMPLETE", "ERROR")


@dataclass(frozen=True)
class KernelSubmission:
    """A submission file among the outputs of a kernel."""

    kernel: str  # owner/slug
    version: int
    file: str
    digest: str  # sha256 of the file
    request_digest: str  # of the request (models and parameters) that the file was made for


@dataclass(frozen=True)
class SubmissionMethod:
    """How a submission is sent: an action of child.py and its arguments."""

    action: str
    arguments: Mapping[str, object]
    command: str  # the equivalent options of `kaggle competitions submit SLUG`


def by_file(path: Path, display_name: str) -> SubmissionMethod:
    return SubmissionMethod("submit", {"path": str(path)}, f"-f {display_name}")


def by_kernel(output: KernelSubmission) -> SubmissionMethod:
    owner, _, slug = output.kernel.partition("/")
    source = {"kernelOwner": owner, "kernelSlug": slug, "kernelVersion": output.version, "fileName": output.file}
    return SubmissionMethod(
        "submit_kernel", {"source": source}, f"-k {output.kernel} -v {output.version} -f {output.file}"
    )


@dataclass(frozen=True)
class SubmissionRequest:
    """A submission to send."""

    slug: str  # of the competition
    method: SubmissionMethod
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
    error: str  # Kaggle's message, or what is unknown in its answer
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
    return Limits(**ask(client, "limits", {"slug": slug}, slug))


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
        if limit.by_total:
            raise UserError(
                f"no submission to {slug} is left ({limit.total or 'all'} were made): the competition limits their total "
                "number, a new day adds none."
            )
        submitted_today = "all" if limit.today is None else limit.today
        raise UserError(
            f"no submission to {slug} is left today ({submitted_today} were made): Kaggle counts days in UTC; "
            "submit it after midnight UTC."
        )
    return limit


def submit(client: Client, request: SubmissionRequest, on_send: Callable[[], None] = lambda: None) -> str:
    """Send the file once; return Kaggle's number of the submission.

    A file that Kaggle already has is not sent, unless request.resend. Retried only if Kaggle certainly did not accept
    it. After a lost answer the list of submissions is polled; raise UnknownOutcome if the submission is not in it.
    on_send: called immediately before the file is sent.
    """
    slug, method = request.slug, request.method
    listed = submissions(client, slug)
    earlier_refs = _refs(listed, request)
    if not earlier_refs and (unreadable := sum(entry.status == answers.UNREADABLE.upper() for entry in listed)):
        client.print_line(
            f"submit: {counted(unreadable, 'unreadable row')} in Kaggle's list of submissions: if another machine has sent this "
            "file, it is sent a second time"
        )
    if earlier_refs and not request.resend:
        return newest_ref(earlier_refs)
    on_send()
    arguments = {"slug": slug, "message": f"{request.note} | {tag(request.digest)}".strip(" |"), **method.arguments}
    events: list[str] = []  # of the last attempt

    def send() -> str:
        events[:] = [] if method.action == "submit" else ["uploaded"]  # a kernel's file is at Kaggle already
        answer = ask(client, method.action, arguments, slug, lambda event: events.append(event["event"]), once=True)
        if not answer["ref"]:
            raise KaggleError("answer", f"Kaggle gave no number for the submission ({answer['message']})")
        return str(answer["ref"])

    try:
        return send_at_most_once(client, "make submit", send, lambda e: had_no_effect(e) or "uploaded" not in events)
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

    def new_ref_in_list() -> str | None:
        listed = submissions(client, request.slug, newest=True)
        return newest_ref(_refs(listed, request).difference(earlier_refs)) or None

    new_ref, error = poll(new_ref_in_list, request.listing_lag, client.policy.first_wait)
    if new_ref is None:
        problem = (
            f"the list of submissions cannot be read, {error}" if error else "it is not in the list of submissions"
        )
        raise UnknownOutcome(
            f"it is unknown whether Kaggle accepted this submission{reason}: {problem}; see {page(request.slug)}. "
            "`make submit` looks again, `make submit AGAIN=1` sends the file once more"
        )
    return new_ref


def _refs(listed: Sequence[Submission], request: SubmissionRequest) -> set[str]:
    """Numbers of the submissions of this file among those that Kaggle lists."""
    of_file = [entry for entry in listed if tag(request.digest) in entry.message]
    if of_file and not any(entry.ref for entry in of_file) and not request.resend:
        raise UnknownOutcome(
            f"Kaggle has this file, but returns no number for it: see its score at {page(request.slug)}; `make submit "
            "AGAIN=1` sends the file once more"
        )
    return {entry.ref for entry in of_file if entry.ref}


def newest_ref(refs: Collection[str]) -> str:
    """The highest of Kaggle's numbers, "" of none."""
    return max(refs, key=lambda ref: (len(ref), ref), default="")


def refuse_another_output(client: Client, output: KernelSubmission) -> None:
    """UserError unless the kernel's output on Kaggle, which Kaggle would score, has the digest of `output`."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"kernel": output.kernel, "version": output.version, "folder": folder, "only": output.file}
        ask(client, "kernel_output", arguments, output.kernel)
        file = Path(folder) / output.file
        if not file.is_file() or sha256(file) != output.digest:
            problem = "differs from the selected submission" if file.is_file() else "is missing on Kaggle"
            raise UserError(
                f"{output.file} of version {output.version} of {output.kernel} {problem}; nothing was sent. `make submit` "
                "checks it again; if that fails, `make kernel AGAIN=1` makes another one, without training again"
            )


def page(slug: str) -> str:
    return f"{SITE}/competitions/{slug}/submissions"


def parse_submission(fields: Mapping[str, str]) -> Submission:
    """Submission from the answer of an action. What cannot be read of it is said in `error`."""
    status = fields["status"].upper() or "PENDING"
    scores = {name: answers.decimal(fields[name]) for name in ("public", "private")}
    unknown = [
        f"its {name} score is {fields[name]!r}" for name, score in scores.items() if fields[name] and score is None
    ]
    if status not in KNOWN_STATUSES:
        unknown.append(f"its status is {fields['status']!r}")
    error = fields["error"] or (f"unknown answer of Kaggle: {', '.join(unknown)}" if unknown else "")
    return Submission(
        fields["ref"], fields["file"], fields["message"], status, **scores, error=error, date=fields["date"]
    )
