"""`make submit`, `make submissions` and `make kernel` as real processes: faults never lead to a second submission or session."""

import json
import signal

import pytest
from builders import params
from light import CSV, DIGEST, running_kaggle

from competition.kernels import request
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import Run


@pytest.fixture
def kaggle_setup(tmp_path):
    with running_kaggle(tmp_path) as setup:
        setup.kaggle._run_kernel = lambda run: setattr(run, "status", "COMPLETE")  # the tests write its output
        yield setup


def submitted_digests(kaggle_setup) -> list[str]:
    return [submission["sha256"] for submission in kaggle_setup.kaggle.submissions]


def killed_during_a_slow_response(kaggle_setup, verb: str, call: str, unlisted_looks: int, message: str) -> None:
    """Kill a verb after Kaggle got its request and before the response.

    message: why the same verb is refused at the same time.  unlisted_looks: how often Kaggle's list lacks what it got.
    """
    kaggle_setup.kaggle.faults[call] = ["after:hold"]
    kaggle_setup.kaggle.unlisted_looks = unlisted_looks
    process = kaggle_setup.start(verb)
    assert kaggle_setup.kaggle.held.wait(300), process.communicate(timeout=1)
    assert message.format(process.pid) in kaggle_setup.refused(verb)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    kaggle_setup.kaggle.released.set()


def test_a_submission_is_found_after_submit_was_killed_during_a_slow_response(kaggle_setup) -> None:
    message = "another `make submit` of small is running, nothing was sent: "
    killed_during_a_slow_response(kaggle_setup, "submit", "CreateSubmission", 1, message)
    assert kaggle_setup.events() == [("sending", "")]
    output = kaggle_setup.do("submit")
    assert "the answer to a submission was lost; looking for it in Kaggle's list" in output
    assert submitted_digests(kaggle_setup) == [DIGEST]
    assert [kind for kind, _ in kaggle_setup.events()] == ["sending", "submitted", "scored"]


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


def test_a_kernel_is_found_after_its_push_was_killed_during_a_slow_response(kaggle_setup) -> None:
    killed_during_a_slow_response(kaggle_setup, "kernel", "SaveKernel", 2, "is in use by process {} on ")
    name = json.loads((kaggle_setup.workspace.work / "kernel" / "run.json").read_text())["run"]
    (run,), listing = kaggle_setup.kaggle.kernels["ada/goldfold-small"], {"run": name, "status": "done", "code": 0}
    listing |= {"problem": "", "devices": "", "archives": [], "seconds": 1}
    (run.folder / "working").mkdir(parents=True)
    (run.folder / "working" / "goldfold-output.json").write_text(json.dumps(listing))
    assert f"resuming run {name}, version 1" in kaggle_setup.do("kernel")
    assert kaggle_setup.kaggle.count("SaveKernel") == 1


def test_a_push_with_unknown_outcome_is_repeated_only_on_request(kaggle_setup) -> None:
    kaggle_setup.kaggle.faults["SaveKernel"] = ["503"]
    error = kaggle_setup.refused("kernel", sets="kaggle.listing_lag=0")
    assert "it is unknown whether Kaggle runs ada/goldfold-small" in error
    assert '`make kernel SET="kaggle.listing_lag=0" AGAIN=1` pushes' in error
    assert kaggle_setup.kaggle.count("SaveKernel") == 1
    assert "left no goldfold-output.json" in kaggle_setup.refused("kernel", "--again")
    assert kaggle_setup.kaggle.count("SaveKernel") == 2


def test_only_unfinished_fold_models_with_a_checkpoint_are_sent_with_the_kernel(tmp_path) -> None:
    parameters = params("prepare.folds=2")
    run = Run("cnn", parameters.members["cnn"], 2, {}, "", tmp_path / "members" / "cnn" / "0123456789ab", {}, "cnn")
    for fold, name in enumerate(("checkpoints/1.json", "notes.json")):
        file = fold_manifest_path(run, fold).parent / name
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    result_folders = request.results_to_resume(tmp_path, parameters, {"cnn": [run]}, {"cnn": [0, 1]})
    assert [result_folder.split("/")[-1] for result_folder in result_folders] == ["fold0"]
