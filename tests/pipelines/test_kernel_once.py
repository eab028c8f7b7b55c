"""`make kernel` as a real process that is killed during the push: one session at Kaggle, whose results are imported."""

import json
import signal

import pytest
from builders import params
from light import running_kaggle

from competition.kernels import request
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import Run


@pytest.fixture
def kaggle_setup(tmp_path):
    with running_kaggle(tmp_path) as setup:
        setup.kaggle._run_kernel = lambda run: setattr(run, "status", "COMPLETE")  # the test writes its output
        yield setup


def test_a_killed_push_is_resumed(kaggle_setup) -> None:
    kaggle_setup.kaggle.faults["SaveKernel"] = ["after:hold"]
    kaggle_setup.kaggle.unlisted_looks = 2
    process = kaggle_setup.start("kernel")
    assert kaggle_setup.kaggle.held.wait(300), process.communicate(timeout=1)
    assert f"is in use by process {process.pid} on " in kaggle_setup.refused("kernel")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    kaggle_setup.kaggle.released.set()
    (run,) = kaggle_setup.kaggle.kernels["ada/goldfold-small"]
    output = run.folder / "working" / "goldfold-output.json"
    output.parent.mkdir(parents=True)
    name = json.loads((kaggle_setup.workspace.work / "kernel" / "run.json").read_text())["run"]
    listing = {"run": name, "status": "done", "code": 0, "problem": "", "devices": "", "archives": [], "seconds": 1}
    output.write_text(json.dumps(listing))
    assert f"resuming run {name}, version 1" in kaggle_setup.do("kernel")
    assert kaggle_setup.kaggle.count("SaveKernel") == 1


def test_a_push_with_unknown_outcome_is_repeated_only_on_request(kaggle_setup) -> None:
    kaggle_setup.kaggle.faults["SaveKernel"] = ["503"]
    error = kaggle_setup.refused("kernel", sets="kaggle.listing_lag=0")
    assert (
        "it is unknown whether Kaggle runs ada/goldfold-small" in error
        and '`make kernel SET="kaggle.listing_lag=0" AGAIN=1` pushes' in error
    )
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
