import dataclasses
import hashlib

import pytest
from fake_kaggle.parts import Run

from competition.config.errors import UserError
from competition.kaggle import submit
from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.errors import KaggleError
from competition.submission import sending
from competition.submission.ledger import already_sent, read, refs

CSV = b"id,label\na,1\nb,2\n"
DIGEST = hashlib.sha256(CSV).hexdigest()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "submission.csv"
    path.write_bytes(CSV)
    return path


LAG = 300.0  # seconds; tests end earlier if the submission is listed


def request_for(source, again=False, lag=LAG):
    return submit.SubmissionRequest("flowers", source, DIGEST, "two members", again, lag)


def send(client, file, again=False, lag=LAG):
    return submit.submit(client, request_for(file, again, lag))


@pytest.mark.parametrize(
    ("method", "faults"), [("upload", ["500"]), ("StartSubmissionUpload", ["503"]), ("CreateSubmission", ["429"])]
)
def test_a_submission_that_kaggle_did_not_accept_is_sent_again(kaggle, client, file, method, faults):
    kaggle.faults[method] = list(faults)
    ref = send(client, file)
    assert [(str(submission["ref"]), submission["sha256"]) for submission in kaggle.submissions] == [(ref, DIGEST)]


@pytest.mark.parametrize("fault", ["lost", "after:redirect"])
def test_after_a_lost_response_the_submission_is_searched_for_and_not_sent_twice(kaggle, client, file, fault):
    kaggle.faults["CreateSubmission"] = [fault]
    kaggle.unlisted_looks = 2  # the first two lists after the submission do not show it
    ref = send(client, file)
    assert [str(submission["ref"]) for submission in kaggle.submissions] == [ref]
    assert kaggle.count("CreateSubmission") == 1


# 500: the submission was not accepted, but the client cannot know that.
def test_an_unknown_outcome_is_an_error_with_the_next_step(kaggle, client, file):
    kaggle.faults["CreateSubmission"] = ["500"]
    with pytest.raises(UnknownOutcome, match=r"unknown whether Kaggle accepted .* see .* `make submit AGAIN=1` sends"):
        send(client, file, lag=0.1)
    assert (kaggle.submissions, kaggle.count("CreateSubmission")) == ([], 1)


def test_a_long_retry_after_is_an_error_with_the_time_of_the_next_attempt(kaggle, client, file, tmp_path):
    method = "CreateSubmission"
    kaggle.faults[method] = ["429:900"] * 9
    with pytest.raises(KaggleError, match=r"nothing was sent; run `make submit` again in 15 minutes, after \d\d:"):
        deliver(client, file, tmp_path / "ledger.jsonl")
    assert (kaggle.count(method), kaggle.submissions) == (1, [])
    assert [event.what for event in read(tmp_path / "ledger.jsonl").events] == ["sending", "failed"]


def deliver(client, file, ledger, again=False, lag=LAG):
    before = already_sent(read(ledger), DIGEST)
    earlier = refs(read(ledger), DIGEST) if before is not None and before.what == "sending" else None
    request = request_for(file, again, lag)
    return sending.send(client, request, earlier, ledger, sending.ScoreWait(20, 0.01, 0.05))


def events(ledger):
    return [(event.what, event.public_score, event.error) for event in read(ledger).events]


def test_every_step_is_recorded_in_the_ledger(kaggle, client, file, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    kaggle.faults["GetSubmission"] = ["404"]  # Kaggle does not know the submission at once
    scored = deliver(client, file, ledger)
    assert (scored.status, scored.public, scored.private, scored.error) == ("COMPLETE", 0.9, None, "")
    assert scored.message == f"two members | goldfold {DIGEST[:16]}"
    assert events(ledger) == [("sending", None, ""), ("submitted", None, ""), ("scored", 0.9, "")]
    assert already_sent(read(ledger), DIGEST).ref == str(kaggle.submissions[0]["ref"])
    assert send(client, file) == scored.ref and len(kaggle.submissions) == 1  # the same file is not sent twice
    kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Required column 'label' could not be found")
    deliver(client, file, ledger, again=True)
    assert events(ledger)[-1] == ("failed", None, "Required column 'label' could not be found")


def test_a_file_that_was_not_uploaded_may_be_sent_again(kaggle, client, file, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    kaggle.faults["upload"] = ["500"] * 3
    with pytest.raises(KaggleError, match="nothing was submitted"):
        deliver(client, file, ledger)
    assert already_sent(read(ledger), DIGEST) is None
    deliver(client, file, ledger)
    assert [what for what, _, _ in events(ledger)] == ["sending", "failed", "sending", "submitted", "scored"]


def test_an_attempt_without_recorded_outcome_is_searched_for_and_not_sent_again(kaggle, client, file, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    deliver(client, file, ledger)
    kaggle.faults["CreateSubmission"] = ["after:504"]
    kaggle.unlisted_looks = 10**9
    with pytest.raises(UnknownOutcome):
        deliver(client, file, ledger, again=True, lag=0.1)
    with pytest.raises(UnknownOutcome):  # the first submission of this file is not taken for the second
        deliver(client, file, ledger, lag=0.1)
    kaggle.faults["ListSubmissions"] = ["401"]
    with pytest.raises(UnknownOutcome, match="cannot be read, Kaggle does not accept the credential"):
        deliver(client, file, ledger)
    assert ([what for what, _, _ in events(ledger)][3:], len(kaggle.submissions)) == (["sending"], 2)
    kaggle.submissions[1]["unlisted"] = 2
    submission = deliver(client, file, ledger)
    assert (submission.ref, len(kaggle.submissions)) == (str(kaggle.submissions[1]["ref"]), 2)
    assert [what for what, _, _ in events(ledger)][3:] == ["sending", "submitted", "scored"]


@pytest.fixture
def kernel_submission(kaggle):
    """The submission of the second of two versions of a kernel."""
    for version, text in enumerate((b"id,label\na,9\nb,9\n", CSV), 1):
        folder = kaggle.folder / f"ada_goldfold-flowers_v{version}"
        (folder / "working").mkdir(parents=True)
        (folder / "working" / "submission.csv").write_bytes(text)
        (folder / "working" / "weights.pack").write_bytes(b"large")
        kaggle.kernels["ada/goldfold-flowers"].append(Run({}, folder, "COMPLETE"))
    kaggle.contests["flowers"].kernels_only = True
    return submit.KernelSubmission("ada/goldfold-flowers", 2, "submission.csv", DIGEST, "")


def submit_from_kernel(client, kernel_submission, again=False):
    submit.refuse_another_output(client, kernel_submission)
    return submit.submit(client, request_for(kernel_submission, again))


def test_the_output_of_a_kernel_is_submitted_once_although_the_response_is_lost(kaggle, client, kernel_submission):
    kaggle.faults["CreateCodeSubmission"] = ["lost"]
    kaggle.unlisted_looks = 1
    ref = submit_from_kernel(client, kernel_submission)
    (submission,) = kaggle.submissions
    assert (str(submission["ref"]), submission["sha256"], submission["name"]) == (ref, DIGEST, "submission.csv")
    assert submission["message"] == f"two members | goldfold {DIGEST[:16]}"
    assert kaggle.count("upload") == 0
    assert sum(name == "GET outputs" for name, _ in kaggle.headers) == 1  # of all outputs only the submission
    (request,) = [request for method, request in kaggle.calls if method == "CreateCodeSubmission"]
    assert (request["kernelOwner"], request["kernelSlug"], request["kernelVersion"]) == ("ada", "goldfold-flowers", 2)
    assert submit_from_kernel(client, kernel_submission) == ref and len(kaggle.submissions) == 1


def test_an_output_that_differs_from_the_local_submission_is_an_error(kaggle, client, kernel_submission):
    message = "submission.csv of version 1 of ada/goldfold-flowers differs from the selected submission"
    with pytest.raises(UserError, match=message):
        submit_from_kernel(client, dataclasses.replace(kernel_submission, version=1))
    assert kaggle.submissions == []


def test_the_daily_limit_is_checked_before_the_upload(kaggle, client, file):
    kaggle.contests["flowers"].daily = 1
    assert submit.refuse_when_used_up(client, "flowers").left == 1
    send(client, file)
    with pytest.raises(UserError, match=r"no submission to flowers is left today \(1 were made\)"):
        submit.refuse_when_used_up(client, "flowers")
