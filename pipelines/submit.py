"""Check the newest submission as Kaggle would, hand it in once, and wait for its score."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from competition.data.prepared import load_prepared
from competition.errors import Refusal
from competition.manifest import atomic
from competition.remote import download, submit
from competition.remote.kaggle_client import Client, slug_of
from competition.submission import format, ledger
from pipelines.progress import progress_bar
from pipelines.stage import Job, add_file, kaggle_client, main, newest_submission, shown

LONGEST = 12  # pauses between two looks grow to so many times the first


def run(job: Job) -> None:
    """submissions/<digest>.csv, data/sample_submission.csv -> Kaggle; ledger.jsonl"""
    job.needs(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    entry = newest_submission(job, ledger.read(job.submissions / "ledger.jsonl").entries)
    file = job.submissions / entry.file
    checked = format.check(file, prepared.sample, prepared.part("test")["id"], prepared.competition)
    for line in [*checked.mended, *checked.warnings]:
        job.say(f"submit: {line}")
    if checked.digest != entry.digest:
        raise Refusal(
            f"{shown(file)} holds other predictions than it was made with; remove it, `make predict` brings it back"
        )
    job.say(f"submit: {shown(file)} holds {checked.rows:,} rows in the order and with the columns of the sample")
    job.say(f"submit: {expected(entry)}")
    if not prepared.competition.slug:
        job.say("submit: this competition is not on Kaggle; `make grade` scores it against its private solution")
        return
    slug = slug_of(prepared.competition.slug)
    if job.params.kaggle.submit == "notebook":
        made = made_by_a_kernel(job, entry)
        way = submit.by_kernel(made)
    else:
        made, way = None, submit.by_file(uploaded(job, entry, checked.content), shown(file))
    job.say(f"kaggle competitions submit {slug} {way.command} -m '{submit.tag(entry.digest)}'")
    hand_in(job, slug, entry, way, made)


def made_by_a_kernel(job: Job, entry: ledger.Entry) -> submit.Made:
    """What `make kernel` noted of the submission that its kernel left, when it is the one in hand."""
    made = submit.read_made(job.path("kernel", "submission.json"))
    if made is None:
        raise Refusal("kaggle.submit is notebook, and no kernel has made a submission yet; `make kernel` has one made")
    if made.digest != entry.digest:
        raise Refusal(
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
    before = ledger.already_sent(ledger.read(job.submissions / "ledger.jsonl"), entry.digest)
    if before is not None and before.what in ("scored", "failed") and not job.options.again:
        job.say(f"submit: {before.what} before as {before.ref} ({told(before.public_score, before.error)})")
        job.say("submit: AGAIN=1 sends the same file once more")
        return
    client = kaggle_client(job)
    how, wait = job.params.kaggle, (job.params.kaggle.score_pause, job.params.kaggle.score_pause * LONGEST)
    with progress_bar(None, "waiting for the score") as bar:

        def waiting(waited: float) -> None:
            bar.update_to(int(waited))

        if before is not None and before.what == "submitted" and not job.options.again:
            job.say(f"submit: sent before as {before.ref}; looking for its score")
            found = submit.follow(client, slug, int(before.ref), how.score_wait, *wait, waiting)
            if found.status != "PENDING":
                what = "failed" if found.status == "ERROR" else "scored"
                record(job, entry.digest, what, before.ref, found.public, found.private, found.error)
        else:
            ready(job, client, slug)
            if made is not None:
                submit.refuse_another_output(client, made)

            def note(what: str, ref: str, public: float | None, private: float | None, error: str) -> None:
                record(job, entry.digest, what, ref, public, private, error)

            found = submit.deliver(
                client,
                slug,
                way,
                entry.digest,
                expected(entry),
                job.options.again,
                note,
                how.score_wait,
                *wait,
                waiting,
            )
    if found.status == "PENDING":
        job.say(f"submit: {found.ref} has no score yet; `make submissions` looks again, or see {submit.page(slug)}")
    elif found.status == "ERROR":
        raise Refusal(f"Kaggle could not score submission {found.ref}: {found.error or 'it gives no reason'}")
    else:
        job.say(f"submit: {found.ref} scored {told(found.public, '')}; `make submissions` compares it with the others")


def ready(job: Job, client: Client, slug: str) -> None:
    """Whatever would make Kaggle refuse, before anything is sent."""
    state = download.preflight(client, slug)
    if state.closed:
        raise Refusal(f"{slug} takes no submissions (any more); nothing was sent")
    if state.kernels_only and job.params.kaggle.submit == "file":
        raise Refusal(
            f"{slug} takes submissions from Kaggle notebooks only, not files; set kaggle.submit to notebook, then "
            "`make kernel submit`; nothing was sent"
        )
    limits = submit.refuse_when_used_up(client, slug)
    job.say(f"submit: {limits.left} submissions to {slug} are left today")


def uploaded(job: Job, entry: ledger.Entry, content: bytes) -> Path:
    """The file as Kaggle gets it: what was checked, byte for byte, whatever an editor did to the one in submissions/."""
    path = job.path("submit", entry.file)
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    return path


def record(job: Job, digest: str, what: str, ref: str, public: float | None, private: float | None, error: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    event = ledger.Event(digest, what, ref, public, private, error, now)  # type: ignore[arg-type]
    ledger.append(job.submissions / "ledger.jsonl", event)


def told(public: float | None, error: str) -> str:
    return error or (f"public {public:.5f}" if public is not None else "no public score")


def add_again(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--again", action="store_true", help="send a file that Kaggle has already")


if __name__ == "__main__":
    main(run, add_file, add_again)
