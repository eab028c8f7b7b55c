"""`make submit` and `make submissions` as real processes: one submission at Kaggle, whatever happens on the way."""

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


def sent(desk):
    return [made["sha256"] for made in desk.kaggle.submissions]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_submit_that_ends_during_a_slow_answer_is_found_again_in_a_list_that_lags(desk, end) -> None:
    desk.kaggle.faults["CreateSubmission"] = ["after:hold"]
    desk.kaggle.unlisted_looks = 2
    process = desk.start("submit")
    assert desk.kaggle.held.wait(300), process.communicate(timeout=1)
    process.send_signal(end)
    process.communicate(timeout=300)
    desk.kaggle.released.set()
    assert desk.events() == [("sending", "")]
    said = desk.do("submit")
    assert "the answer to a submission was lost; looking for it in Kaggle's list" in said
    assert sent(desk) == [DIGEST]
    assert [what for what, _ in desk.events()] == ["sending", "submitted", "scored"]


def test_of_two_submits_at_once_one_refuses(desk) -> None:
    desk.kaggle.faults["CreateSubmission"] = ["after:hold"]
    desk.kaggle.unlisted_looks = 1
    first = desk.start("submit")
    assert desk.kaggle.held.wait(300)
    told = desk.refused("submit")
    assert "another `make submit` of small is running; nothing was sent" in told
    desk.kaggle.released.set()
    first.communicate(timeout=300)
    assert (first.returncode, sent(desk)) == (0, [DIGEST])


def test_an_attempt_that_kaggle_never_got_is_sent_only_when_asked(desk) -> None:
    desk.note("sending")  # and then the process was killed, before the upload
    told = desk.refused("submit", sets="kaggle.listing_lag=0")
    assert "unknown whether Kaggle accepted this submission" in told and "`make submit AGAIN=1` sends" in told
    assert (sent(desk), desk.events()) == ([], [("sending", "")])
    desk.do("submit", "--again")
    assert sent(desk) == [DIGEST]


def test_a_submission_that_could_not_be_scored_is_an_error_each_time(desk) -> None:
    desk.kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Submission must have 7382 rows.")
    for _ in range(2):
        told = desk.refused("submit")
        assert "Submission must have 7382 rows; AGAIN=1 sends the same file once more" in told
    assert sent(desk) == [DIGEST]


def test_a_try_that_kaggle_did_not_take_does_not_hide_the_score_before_it(desk) -> None:
    desk.note("submitted", "7")
    desk.note("scored", "7", 0.75)
    desk.note("sending")
    desk.note("failed", error="no network")
    assert "scored before as 7 (public 0.75000)" in desk.do("submit")


def test_the_table_shows_everything_on_kaggle_and_keeps_scores_when_the_limits_fail(desk) -> None:
    desk.note("sending")  # its answer was lost
    ours, other = f"two members | goldfold {DIGEST[:16]}", "by hand"
    for data, name, message in ((CSV, "x.csv", ours), (b"2", "mine\x1b[2J.csv", other)):
        ask = {"competitionName": "flowers", "submissionDescription": message}
        desk.kaggle._submitted(ask, data, name)
    desk.kaggle.pending_polls = -1
    desk.kaggle.faults["GetSubmissionLimits"] = ["500"] * 9
    said = desk.do("submissions")
    assert [what for what, _ in desk.events()] == ["sending", "submitted", "scored"]
    first, second = (made["ref"] for made in desk.kaggle.submissions)
    (own,) = [line for line in said.splitlines() if line.startswith(DIGEST[:12])]
    assert own.split()[1] == str(first) and "0.90000" in own and own.endswith("scored")
    (foreign,) = [line for line in said.splitlines() if str(second) in line]
    assert "mine?[2J.csv (made elsewhere)" in foreign and foreign.endswith("scored")
    assert "could not read how many are left today: Kaggle's server failed" in said


def test_an_open_attempt_is_called_unknown_and_a_dead_kaggle_hides_no_line(desk) -> None:
    desk.note("sending")
    desk.kaggle.faults["ListSubmissions"] = ["500"] * 9
    said = desk.do("submissions")
    assert "sending: outcome unknown, `make submit` looks for it" in said
    assert "could not read Kaggle's list" in said and "5 left today" in said
