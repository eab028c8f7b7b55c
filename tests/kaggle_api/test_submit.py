import dataclasses
import hashlib

import pytest
from fake_kaggle.parts import Run

from competition.config.errors import UserError
from competition.kaggle import submit
from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.errors import KaggleError
from competition.submission import sending
from competition.submission.ledger import already_sent, read

CSV = b"id,label\na,1\nb,2\n"
DIGEST = hashlib.sha256(CSV).hexdigest()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "submission.csv"
    path.write_bytes(CSV)
    return path


def request_for(source, again=False, lag=300.0):
    """lag: seconds; tests end earlier if the submission is listed."""
    return submit.SubmissionRequest("flowers", source, DIGEST, "two members", again, lag)


def ledger_of(file):
    return read(file.with_name("ledger.jsonl"))


def deliver(client, file, again=False, lag=300.0):
    """Submit the file and wait for its score, as `make submit` does; `steps` are then those in the ledger."""
    wait = sending.ScoreWait(20, 0.01, 0.05)
    return sending.send(client, request_for(file, again, lag), file.with_name("ledger.jsonl"), wait)


def steps(file):
    return [event.what for event in ledger_of(file).events]


def test_a_submission_that_kaggle_did_not_accept_is_sent_again(kaggle, client, file):
    kaggle.faults |= {"upload": ["500"], "StartSubmissionUpload": ["503"], "CreateSubmission": ["429"]}
    client = dataclasses.replace(client, policy=dataclasses.replace(client.policy, max_attempts=4))
    ref = deliver(client, file).ref
    assert [(str(submission["ref"]), submission["sha256"]) for submission in kaggle.submissions] == [(ref, DIGEST)]


@pytest.mark.parametrize("fault", ["lost", "after:redirect"])
def test_after_a_lost_response_the_submission_is_searched_for_and_not_sent_twice(kaggle, client, file, fault):
    kaggle.faults["CreateSubmission"] = [fault]
    kaggle.unlisted_looks = 2  # the first two lists after the submission do not show it
    assert [deliver(client, file).ref] == [str(submission["ref"]) for submission in kaggle.submissions]
    assert kaggle.count("CreateSubmission") == 1


def test_every_step_is_recorded_in_the_ledger(kaggle, client, file):
    kaggle.faults["GetSubmission"] = ["404"]  # Kaggle does not know the submission at once
    scored = deliver(client, file)
    assert (scored.status, scored.public, scored.private, scored.error) == ("COMPLETE", 0.9, None, "")
    assert steps(file) == ["sending", "submitted", "scored"] and ledger_of(file).events[-1].public_score == 0.9
    assert already_sent(ledger_of(file), DIGEST).ref == str(kaggle.submissions[0]["ref"])
    again = submit.submit(client, request_for(file))
    assert again == scored.ref and len(kaggle.submissions) == 1  # the same file is not sent twice
    kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Required column 'label' could not be found")
    deliver(client, file, again=True)
    failed = ledger_of(file).events[-1]
    assert (failed.what, failed.error) == ("failed", "Required column 'label' could not be found")


@pytest.mark.parametrize(
    ("method", "faults", "message"),
    [
        ("upload", ["500"] * 3, "nothing was submitted"),
        ("CreateSubmission", ["429:900"], "refuses more requests .* run this again in 15 minutes, after"),
    ],
)
def test_a_file_that_kaggle_did_not_get_may_be_sent_again(kaggle, client, file, method, faults, message):
    kaggle.faults[method] = [*faults]
    with pytest.raises(KaggleError, match=message):
        deliver(client, file)
    assert already_sent(ledger_of(file), DIGEST) is None and kaggle.submissions == []
    deliver(client, file)
    assert steps(file) == ["sending", "failed", "sending", "submitted", "scored"]


def test_an_attempt_without_recorded_outcome_is_searched_for_and_not_sent_again(kaggle, client, file):
    deliver(client, file)
    kaggle.faults["CreateSubmission"] = ["after:504"]
    kaggle.unlisted_looks = 10**9
    with pytest.raises(UnknownOutcome, match=r"unknown whether Kaggle accepted .* see .* `make submit AGAIN=1` sends"):
        deliver(client, file, again=True, lag=0.1)
    with pytest.raises(UnknownOutcome):  # the first submission of this file is not taken for the second
        deliver(client, file, lag=0.1)
    kaggle.faults["ListSubmissions"] = ["401"]
    with pytest.raises(UnknownOutcome, match="cannot be read, Kaggle does not accept the credential"):
        deliver(client, file)
    assert (steps(file)[3:], len(kaggle.submissions)) == (["sending"], 2)
    kaggle.submissions[1]["unlisted"] = 2
    submission = deliver(client, file)
    assert (submission.ref, len(kaggle.submissions)) == (str(kaggle.submissions[1]["ref"]), 2)
    assert steps(file)[3:] == ["sending", "submitted", "scored"]


@pytest.fixture
def kernel_submission(kaggle):
    """The submission of the second of two versions of a kernel."""
    for version, text in enumerate((b"id,label\na,9\nb,9\n", CSV), 1):
        folder = kaggle.folder / f"ada_goldfold-flowers_v{version}"
        (folder / "working").mkdir(parents=True)
        (folder / "working" / "submission.csv").write_bytes(text)
        kaggle.kernels["ada/goldfold-flowers"].append(Run({}, folder, "COMPLETE"))
    kaggle.contests["flowers"].kernels_only = True
    return submit.KernelSubmission("ada/goldfold-flowers", 2, "submission.csv", DIGEST, "")


def submit_from_kernel(client, kernel_submission):
    submit.refuse_another_output(client, kernel_submission)
    return submit.submit(client, request_for(kernel_submission))


def test_the_output_of_a_kernel_is_submitted_once_although_the_response_is_lost(kaggle, client, kernel_submission):
    with pytest.raises(UserError, match="of version 1 of ada/goldfold-flowers differs from the selected submission"):
        submit_from_kernel(client, dataclasses.replace(kernel_submission, version=1))
    kaggle.faults["CreateCodeSubmission"] = ["lost"]
    kaggle.unlisted_looks = 1
    ref = submit_from_kernel(client, kernel_submission)
    (submission,) = kaggle.submissions
    assert (str(submission["ref"]), submission["sha256"], submission["name"]) == (ref, DIGEST, "submission.csv")
    assert submission["message"] == f"two members | goldfold {DIGEST[:16]}" and kaggle.count("upload") == 0
    (request,) = [request for method, request in kaggle.calls if method == "CreateCodeSubmission"]
    assert (request["kernelOwner"], request["kernelSlug"], request["kernelVersion"]) == ("ada", "goldfold-flowers", 2)
    assert submit_from_kernel(client, kernel_submission) == ref and len(kaggle.submissions) == 1


def test_the_daily_limit_is_checked_before_the_upload(kaggle, client, file):
    kaggle.contests["flowers"].daily = 1
    assert submit.refuse_when_used_up(client, "flowers").left == 1
    deliver(client, file)
    with pytest.raises(UserError, match=r"no submission to flowers is left today \(1 were made\)"):
        submit.refuse_when_used_up(client, "flowers")
    used_up = {"numToday": 0, "numTotal": 40, "numAllowedNow": 0, "limitedByTotal": True}
    kaggle.get_submission_limits = lambda request: used_up
    with pytest.raises(UserError, match=r"\(40 were made\): the competition limits their total number"):
        submit.refuse_when_used_up(client, "flowers")
    kaggle.get_submission_limits = lambda request: {"numToday": 3}  # what Kaggle does not say stops nothing
    assert submit.refuse_when_used_up(client, "flowers").left is None
