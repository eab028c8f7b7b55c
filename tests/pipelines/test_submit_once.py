"""`make submit` and `make submissions` as real processes: faults never lead to a second submission."""

import signal
import sys
from pathlib import Path

import pytest
from world import ROOT

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from fake_kaggle.world import FILES
from light import CSV, DIGEST, set_up


@pytest.fixture
def desk(tmp_path):
    (tmp_path / "server").mkdir()
    with FakeKaggle(tmp_path / "server") as kaggle:
        kaggle.contests["flowers"] = Contest(FILES)
        yield set_up(kaggle, tmp_path, ROOT)


def submitted_digests(desk):
    return [submission["sha256"] for submission in desk.kaggle.submissions]


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_a_submission_is_found_after_submit_was_killed_during_a_slow_response(desk, signal_number) -> None:
    desk.kaggle.faults["CreateSubmission"] = ["after:hold"]
    desk.kaggle.unlisted_looks = 2
    process = desk.start("submit")
    assert desk.kaggle.held.wait(300), process.communicate(timeout=1)
    process.send_signal(signal_number)
    process.communicate(timeout=300)
    desk.kaggle.released.set()
    assert desk.events() == [("sending", "")]
    output = desk.do("submit")
    assert "the answer to a submission was lost; looking for it in Kaggle's list" in output
    assert submitted_digests(desk) == [DIGEST]
    assert [kind for kind, _ in desk.events()] == ["sending", "submitted", "scored"]


def test_a_second_submit_at_the_same_time_is_an_error(desk) -> None:
    desk.kaggle.faults["CreateSubmission"] = ["after:hold"]
    desk.kaggle.unlisted_looks = 1
    first = desk.start("submit")
    assert desk.kaggle.held.wait(300)
    error = desk.refused("submit")
    assert "another `make submit` of small is running; nothing was sent" in error
    desk.kaggle.released.set()
    first.communicate(timeout=300)
    assert (first.returncode, submitted_digests(desk)) == (0, [DIGEST])


def test_an_attempt_with_unknown_outcome_is_repeated_only_on_request(desk) -> None:
    desk.note("sending")  # the process was killed before the upload
    error = desk.refused("submit", sets="kaggle.listing_lag=0")
    assert "unknown whether Kaggle accepted this submission" in error and "`make submit AGAIN=1` sends" in error
    assert (submitted_digests(desk), desk.events()) == ([], [("sending", "")])
    desk.do("submit", "--again")
    assert submitted_digests(desk) == [DIGEST]


def test_a_submission_that_kaggle_cannot_score_is_an_error_each_time(desk) -> None:
    desk.kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Submission must have 7382 rows.")
    for _ in range(2):
        error = desk.refused("submit")
        assert "Submission must have 7382 rows; AGAIN=1 sends the same file once more" in error
    assert submitted_digests(desk) == [DIGEST]


def test_a_failed_attempt_does_not_hide_an_earlier_score(desk) -> None:
    desk.note("submitted", "7")
    desk.note("scored", "7", 0.75)
    desk.note("sending")
    desk.note("failed", error="no network")
    assert "scored before as 7 (public 0.75000)" in desk.do("submit")


def test_the_table_shows_all_submissions_on_kaggle_although_the_limits_cannot_be_read(desk) -> None:
    desk.note("sending")  # the response was lost
    own_message, other_message = f"two members | goldfold {DIGEST[:16]}", "by hand"
    for data, name, message in ((CSV, "x.csv", own_message), (b"2", "mine\x1b[2J.csv", other_message)):
        request = {"competitionName": "flowers", "submissionDescription": message}
        desk.kaggle._submitted(request, data, name)
    desk.kaggle.pending_polls = -1
    desk.kaggle.faults["GetSubmissionLimits"] = ["500"] * 9
    output = desk.do("submissions")
    assert [kind for kind, _ in desk.events()] == ["sending", "submitted", "scored"]
    first, second = (submission["ref"] for submission in desk.kaggle.submissions)
    (own_line,) = [line for line in output.splitlines() if line.startswith(DIGEST[:12])]
    assert own_line.split()[1] == str(first) and "0.90000" in own_line and own_line.endswith("scored")
    (foreign_line,) = [line for line in output.splitlines() if str(second) in line]
    assert "mine?[2J.csv (made elsewhere)" in foreign_line and foreign_line.endswith("scored")
    assert "could not read how many are left today: Kaggle's server failed" in output


def test_an_attempt_without_outcome_is_shown_as_unknown_although_kaggle_cannot_be_read(desk) -> None:
    desk.note("sending")
    desk.kaggle.faults["ListSubmissions"] = ["500"] * 9
    output = desk.do("submissions")
    assert "sending: outcome unknown, `make submit` looks for it" in output
    assert "could not read Kaggle's list" in output and "5 left today" in output
