"""Check the newest submission as Kaggle would, hand it in once, and wait for its score."""

from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from competition.artifacts.manifest import atomic_write
from competition.config.errors import UserError
from competition.data.prepared import load_prepared
from competition.kaggle import delivery, download, submit
from competition.kaggle.client import Client, slug_of
from competition.submission import format, ledger
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, kaggle_client, newest_submission

LONGEST = 12  # pauses between two looks grow to so many times the first


def run(job: Job) -> None:
    """submissions/<digest>.csv, data/sample_submission.csv -> Kaggle; ledger.jsonl"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    entry = newest_submission(job, ledger.read(job.submissions / "ledger.jsonl").entries)
    file = job.submissions / entry.file
    checked = format.check(file, prepared.sample, prepared.part("test")["id"], prepared.competition)
    for line in [*checked.mended, *checked.warnings]:
        job.echo(f"submit: {line}")
    if checked.digest != entry.digest:
        raise UserError(
            f"{display_path(file)} holds other predictions than it was made with; remove it, `make predict` brings it back"
        )
    job.echo(
        f"submit: {display_path(file)} holds {checked.rows:,} rows in the order and with the columns of the sample"
    )
    job.echo(f"submit: {expected(entry)}")
    if not prepared.competition.slug:
        job.echo("submit: this competition is not on Kaggle; `make grade` scores it against its private solution")
        return
    slug = slug_of(prepared.competition.slug)
    if job.params.kaggle.submit == "notebook":
        made = made_by_a_kernel(job, entry)
        way = submit.by_kernel(made)
    else:
        made, way = None, submit.by_file(uploaded(job, entry, checked.content), display_path(file))
    job.echo(f"kaggle competitions submit {slug} {way.command} -m '{submit.tag(entry.digest)}'")
    hand_in(job, slug, entry, way, made)


def made_by_a_kernel(job: Job, entry: ledger.Entry) -> submit.Made:
    """What `make kernel` noted of the submission that its kernel left, when it is the one in hand."""
    made = submit.read_made(job.path("kernel", "submission.json"))
    if made is None:
        raise UserError(
            "kaggle.submit is notebook, and no kernel has made a submission yet; `make kernel` has one made"
        )
    if made.digest != entry.digest:
        raise UserError(
            f"kaggle.submit is notebook, and version {made.version} of {made.kernel} made {made.digest[:12]}, not "
            f"{entry.digest[:12]}; FILE={made.digest[:12]} hands that one in, after a change `make kernel` makes another"
        )
    return made


def expected(entry: ledger.Entry) -> str:
    partial = f" (PARTIAL {entry.partial})" if entry.partial else ""
    if entry.honest_score is None:
        return f"no honest score is known{partial}"
    error = f" ± {entry.standard_error:.4f}" if entry.standard_error is not None else ""
    return f"{'optimistic' if entry.optimistic else 'honest'} {entry.metric} {entry.honest_score:.4f}{error}{partial}"


def hand_in(job: Job, slug: str, entry: ledger.Entry, way: submit.Way, made: submit.Made | None) -> None:
    """Send the file, unless it was sent before, and follow it to its score. One process at a time."""
    try:
        held = FileLock(job.submissions / f".submit-{entry.competition}.lock").acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"another `make submit` of {entry.competition} is under way; nothing was sent, wait for it or stop it"
        ) from None
    with held:
        send_and_follow(job, slug, entry, way, made)


def send_and_follow(job: Job, slug: str, entry: ledger.Entry, way: submit.Way, made: submit.Made | None) -> None:
    known, again = ledger.read(job.submissions / "ledger.jsonl"), job.options.again
    before = ledger.already_sent(known, entry.digest)
    if before is not None and before.what in ("scored", "failed") and not again:
        say_result(job, before)
        return
    client, how = kaggle_client(job), job.params.kaggle
    timing = delivery.Timing(how.score_wait, how.score_pause, how.score_pause * LONGEST, how.listing_lag)
    unresolved = before is not None and before.what == "sending"

    def note(what: str, ref: str, public: float | None, private: float | None, error: str) -> None:
        record(job, entry.digest, what, ref, public, private, error)

    with progress_bar(None, "waiting for the score") as bar:

        def waiting(waited: float) -> None:
            bar.update_to(int(waited))

        if before is not None and before.what == "submitted" and not again:
            job.echo(f"submit: sent before as {before.ref}; looking for its score")
            submission = delivery.follow(
                client, slug, int(before.ref), timing.score, timing.shortest, timing.longest, waiting
            )
            if submission.status != "PENDING":
                what = delivery.outcome(submission)
                note(what, before.ref, submission.public, submission.private, submission.error)
        else:
            if again or not unresolved:
                ready(job, client, slug)
                if made is not None:
                    submit.refuse_another_output(client, made)
            earlier = delivery.Earlier(ledger.refs(known, entry.digest), unresolved)
            submission = delivery.deliver(
                client, slug, way, entry.digest, expected(entry), again, earlier, note, timing, waiting
            )
    if submission.status == "PENDING":
        job.echo(
            f"submit: {submission.ref} has no score yet; `make submissions` looks again, or see {submit.page(slug)}"
        )
    elif submission.status == "ERROR":
        raise not_scored(str(submission.ref), submission.error)
    else:
        job.echo(
            f"submit: {submission.ref} scored {told(submission.public, '')}; `make submissions` compares it with the others"
        )


def say_result(job: Job, event: ledger.Event) -> None:
    """What became of a file that was sent before; an error of Kaggle is one each time."""
    if event.what == "failed":
        raise not_scored(event.ref, event.error)
    job.echo(f"submit: scored before as {event.ref} ({told(event.public_score, event.error)})")
    job.echo("submit: AGAIN=1 sends the same file once more")


def not_scored(ref: str, error: str) -> UserError:
    words = error.rstrip(".") or "it gives no reason"
    return UserError(f"Kaggle could not score submission {ref}: {words}; AGAIN=1 sends the same file once more")


def ready(job: Job, client: Client, slug: str) -> None:
    """Whatever would make Kaggle refuse, before anything is sent."""
    state = download.preflight(client, slug)
    if state.closed:
        raise UserError(f"{slug} takes no submissions (any more); nothing was sent")
    if state.kernels_only and job.params.kaggle.submit == "file":
        raise UserError(
            f"{slug} takes submissions from Kaggle notebooks only, not files; set kaggle.submit to notebook, then "
            "`make kernel submit`; nothing was sent"
        )
    limits = submit.refuse_when_used_up(client, slug)
    job.echo(f"submit: {limits.left} submissions to {slug} are left today")


def uploaded(job: Job, entry: ledger.Entry, content: bytes) -> Path:
    """The file as Kaggle gets it: what was checked, byte for byte, whatever an editor did to the one in submissions/."""
    path = job.path("submit", entry.file)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def record(job: Job, digest: str, what: str, ref: str, public: float | None, private: float | None, error: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    event = ledger.Event(digest, what, ref, public, private, error, now)  # type: ignore[arg-type]
    ledger.append(job.submissions / "ledger.jsonl", event)


def told(public: float | None, error: str) -> str:
    return error or (f"public {public:.5f}" if public is not None else "no public score")


if __name__ == "__main__":
    main("submit")
