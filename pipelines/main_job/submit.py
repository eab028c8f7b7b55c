"""Check the submission of the current parameters against the sample, submit it once and wait for its score."""

import hashlib
from pathlib import Path

from competition.config.errors import UserError, counted
from competition.files.locks import InUse, exclusive
from competition.files.manifest import atomic_write, read_record
from competition.kaggle import download, submit
from competition.kaggle.client import Client, competition_slug
from competition.report.terminal import baseline_text
from competition.submission import ledger, sending, submission_csv
from pipelines.execution.selection import honest_score_text, not_on_kaggle, require_test_images, submission_of
from pipelines.terminal.job import Job, kaggle_client
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

LONGEST_PAUSE = 12  # longest pause between two status requests, as a multiple of the first


def run(job: Job) -> None:
    """submissions/<digest>.csv, data/sample_submission.csv -> Kaggle; ledger.jsonl"""
    prepared = job.prepared
    require_test_images(job)
    entry = submission_of(job, "submit")
    file = job.submissions / entry.file
    content, shown = file.read_bytes(), display_path(file)
    if hashlib.sha256(content).hexdigest() != entry.digest:
        remedy = "remove it, `make predict` writes it again"
        raise UserError(f"{shown} does not hold the predictions it was written with; {remedy}")
    sample_file = prepared.folder / "sample_submission.csv"
    sample = submission_csv.check_sample(sample_file, prepared.part("test")["id"], prepared.competition)
    ids = submission_csv.read_predictions(file, prepared.competition).index
    submission_csv.require_ids(shown, ids, sample, sample_file)
    job.echo(f"submit: {shown} has {counted(len(sample), 'row')} with the ids and the columns of the sample")
    baseline = baseline_text(prepared, job.path("blends"), entry, entry.honest_score)
    job.echo(f"submit: {honest_score_text(entry)}; {baseline}")
    if not prepared.competition.slug:
        job.echo(f"submit: nothing was sent: {not_on_kaggle(job)}")
        return
    slug = competition_slug(prepared.competition.slug)
    source: Path | submit.KernelSubmission
    if job.params.kaggle.submit == "notebook":
        source = output_of_kernel(job, entry)
        options = f"-k {source.kernel} -v {source.version} -f {source.file}"
    else:  # the checked bytes: the file in submissions/ may be edited from now on
        source, options = job.path("submit", entry.file), f"-f {display_path(file)}"
        with atomic_write(source) as temporary:
            temporary.write_bytes(content)
    job.echo(f"kaggle competitions submit {slug} {options} -m '{submit.tag(entry.digest)}'")
    try:
        with exclusive(job.submissions / f".submit-{entry.competition}.lock", f"submit {entry.file}"):
            send_and_follow(job, slug, entry, source)
    except InUse as error:
        raise UserError(f"another `make submit` of {entry.competition} is running, nothing was sent: {error}") from None


def output_of_kernel(job: Job, entry: ledger.Entry) -> submit.KernelSubmission:
    """Return the kernel output that holds this submission. Raises UserError if there is none or it holds another one."""
    output = read_record(job.path("kernel", "submission.json"), submit.KernelSubmission)
    if output is None:
        raise UserError("kaggle.submit is notebook, and no kernel has made a submission yet; `make kernel` makes one")
    if output.digest != entry.digest:
        made, wanted = output.digest[:12], entry.digest[:12]
        raise UserError(
            f"kaggle.submit is notebook, and version {output.version} of {output.kernel} made {made}, not {wanted}; FILE={made} submits "
            "that one; `make kernel` makes another after a change"
        )
    return output


def send_and_follow(job: Job, slug: str, entry: ledger.Entry, source: Path | submit.KernelSubmission) -> None:
    """Send the file unless it was sent before and wait for its score. The caller keeps other processes from it."""
    ledger_path, again = job.submissions / "ledger.jsonl", job.options.again
    stored = ledger.of_competition(ledger.read(ledger_path), entry.competition, slug)
    last_event = ledger.already_sent(stored, entry.digest)
    if last_event is not None and last_event.what in ("scored", "failed") and not again:
        is_failed, public = last_event.what == "failed", last_event.public_score
        score = score_text(last_event.ref, is_failed, public, last_event.error)
        job.echo(f"submit: scored before as {last_event.ref} ({score})")
        job.echo("submit: AGAIN=1 sends the same file once more")
        return
    client, settings = kaggle_client(job), job.params.kaggle
    with Bar(None, "waiting for the score") as bar:
        pause, show = settings.score_pause, lambda seconds: bar.update_to(int(seconds))
        score_wait = sending.ScoreWait(settings.score_wait, pause, pause * LONGEST_PAUSE, show)
        if last_event is not None and last_event.what == "submitted" and not again:
            job.echo(f"submit: sent before as {last_event.ref}; looking for its score")
            submission = sending.follow(client, slug, last_event.ref, score_wait)
            if submission.is_finished:
                sending.record_result(ledger_path, entry.digest, slug, submission)
        else:
            if again or last_event is None or last_event.what != "sending":
                require_accepting(job, client, slug)
                if isinstance(source, submit.KernelSubmission):
                    submit.refuse_another_output(client, source)
            note = honest_score_text(entry)
            request = submit.SubmissionRequest(slug, source, entry.digest, note, again, settings.listing_lag)
            submission = sending.send(client, request, ledger_path, score_wait)
    if not submission.is_finished:
        state = f" ({submission.error})" if submission.error else ""
        where = f"`make submissions` looks again, or see {submit.PAGE.format(slug)}"
        job.echo(f"submit: {submission.ref} has no score yet{state}; {where}")
        return
    score = score_text(submission.ref, submission.status == "ERROR", submission.public, submission.error)
    job.echo(f"submit: {submission.ref} scored {score}; `make submissions` compares it with the others")


def require_accepting(job: Job, client: Client, slug: str) -> None:
    """Raise UserError if Kaggle would reject a submission now."""
    state = download.require_access(client, slug)
    if state.closed:
        raise UserError(f"{slug} takes no submissions (any more); nothing was sent")
    if state.kernels_only and job.params.kaggle.submit == "file":
        remedy = "set kaggle.submit to notebook, then `make kernel submit`"
        raise UserError(f"{slug} takes submissions from Kaggle notebooks only, nothing was sent; {remedy}")
    limits = submit.refuse_when_used_up(client, slug)
    left = "Kaggle does not say how many submissions" if limits.left is None else counted(limits.left, "submission")
    job.echo(f"submit: left today for {slug}: {left}")


def score_text(ref: str, is_failed: bool, public: float | None, error: str) -> str:
    """The public score of a submission, or what is unknown about it. Raises UserError if Kaggle could not score it."""
    if is_failed:
        reason = error.rstrip(".") or "it gives no reason"
        raise UserError(f"Kaggle could not score submission {ref}: {reason}; AGAIN=1 sends the same file once more")
    return error or (f"public {public:.5f}" if public is not None else "no public score")
