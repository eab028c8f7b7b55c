"""`make submit` and `make submissions` as real processes: faults never lead to a second submission."""

import signal

import pytest
from light import CSV, DIGEST, running_kaggle


@pytest.fixture
def kaggle_setup(tmp_path):
    with running_kaggle(tmp_path) as setup:
        yield setup


def submitted_digests(kaggle_setup):
    return [submission["sha256"] for submission in kaggle_setup.kaggle.submissions]


def test_a_submission_is_found_after_submit_was_killed_during_a_slow_response(kaggle_setup) -> None:
    kaggle_setup.kaggle.faults["CreateSubmission"] = ["after:hold"]
    kaggle_setup.kaggle.unlisted_looks = 1
    process = kaggle_setup.start("submit")
    assert kaggle_setup.kaggle.held.wait(300), process.communicate(timeout=1)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    kaggle_setup.kaggle.released.set()
    assert kaggle_setup.events() == [("sending", "")]
    output = kaggle_setup.do("submit")
    assert "the answer to a submission was lost; looking for it in Kaggle's list" in output
    assert submitted_digests(kaggle_setup) == [DIGEST]
    assert [kind for kind, _ in kaggle_setup.events()] == ["sending", "submitted", "scored"]


def test_a_second_submit_at_the_same_time_is_an_error(kaggle_setup) -> None:
    kaggle_setup.kaggle.faults["CreateSubmission"] = ["after:hold"]
    kaggle_setup.kaggle.unlisted_looks = 1
    first = kaggle_setup.start("submit")
    assert kaggle_setup.kaggle.held.wait(300)
    error = kaggle_setup.refused("submit")
    assert "another `make submit` of small is running" in error and "nothing was sent" in error
    kaggle_setup.kaggle.released.set()
    first.communicate(timeout=300)
    assert (first.returncode, submitted_digests(kaggle_setup)) == (0, [DIGEST])


def test_an_attempt_with_unknown_outcome_is_repeated_only_on_request(kaggle_setup) -> None:
    kaggle_setup.note("sending")  # the process was killed before the upload
    error = kaggle_setup.refused("submit", sets="kaggle.listing_lag=0")
    assert "unknown whether Kaggle accepted this submission" in error and "AGAIN=1` sends" in error
    assert (submitted_digests(kaggle_setup), kaggle_setup.events()) == ([], [("sending", "")])
    kaggle_setup.do("submit", "--again")
    assert submitted_digests(kaggle_setup) == [DIGEST]


def test_a_submission_that_kaggle_cannot_score_is_an_error_each_time(kaggle_setup) -> None:
    kaggle_setup.kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Submission must have 7382 rows.")
    for _ in range(2):
        assert "Submission must have 7382 rows; AGAIN=1 sends" in kaggle_setup.refused("submit")
    assert submitted_digests(kaggle_setup) == [DIGEST]


def test_the_table_shows_all_submissions_on_kaggle_although_the_limits_cannot_be_read(kaggle_setup) -> None:
    kaggle_setup.note("sending")  # the response was lost
    own_message, other_message = f"two members | goldfold {DIGEST[:16]}", "by hand"
    for data, name, message in ((CSV, "x.csv", own_message), (b"2", "mine\x1b[2J.csv", other_message)):
        request = {"competitionName": "flowers", "submissionDescription": message}
        kaggle_setup.kaggle._submitted(request, data, name)
    kaggle_setup.kaggle.pending_polls = -1
    kaggle_setup.kaggle.faults["GetSubmissionLimits"] = ["500"] * 9
    result = kaggle_setup.run("submissions")
    assert [kind for kind, _ in kaggle_setup.events()] == ["sending", "submitted", "scored"]
    (own_line,) = [line for line in result.out.splitlines() if line.startswith(DIGEST[:12])]
    assert "0.90000" in own_line and own_line.endswith("scored") and "mine?[2J.csv (made elsewhere)" in result.out
    assert result.code == 1 and "the table is complete, but today's limit is missing: " in result.err


def test_a_late_score_and_one_that_kaggle_changes_later_are_recorded_and_shown(kaggle_setup) -> None:
    kaggle_setup.kaggle.pending_polls = 10**9
    assert "has no score yet" in kaggle_setup.do("submit", sets="kaggle.score_wait=0")
    kaggle_setup.kaggle.pending_polls = 0
    assert "+0.0000" in kaggle_setup.do("submissions")  # the public score minus the honest one
    (sent,) = kaggle_setup.kaggle.submissions
    sent["final"] = ("COMPLETE", "0.7", "0.65", "")  # after the deadline
    assert "0.65000" in kaggle_setup.do("submissions")
    recorded = kaggle_setup.events()
    kaggle_setup.do("submissions")  # nothing new
    assert kaggle_setup.events() == recorded and len(recorded) == 4
    assert "scored before as" in (output := kaggle_setup.do("submit")) and "public 0.70000" in output
    assert submitted_digests(kaggle_setup) == [DIGEST]
