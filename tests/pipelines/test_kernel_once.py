"""`make kernel` as a real process that is killed during the push: one session at Kaggle, whose results are imported."""

import json
import signal
from zipfile import ZipFile

import pytest
from light import running_kaggle

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.workspace.workspace import Workspace
from pipelines.kaggle import kernel
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job


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


def test_external_images_inside_the_project_are_sent_with_the_kernel(kaggle_setup, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more" / "rose").mkdir(parents=True)
    (tmp_path / "more" / "rose" / "1.jpg").write_bytes(b"an image")
    for name, value in kaggle_setup.kaggle.environment(kaggle_setup.home).items():
        monkeypatch.setenv(name, value)
    overrides = parse_overrides("'prepare.external={more: more}' members.slim.external=[more]")
    workspace = kaggle_setup.workspace
    params = load_params(workspace.params, overrides)
    job = Job(Workspace(workspace.work, params, tuple(overrides)), Options(), workspace.submissions)
    with pytest.raises(UserError, match=r"left no goldfold-output\.json"):  # nothing runs there
        kernel.run(job)
    assert any("kernel: 1 folders of this machine are sent with it" in line for line in job.echoed)
    (run,) = kaggle_setup.kaggle.kernels["ada/goldfold-small"]
    (attached,) = run.request["datasetDataSources"]
    (tmp_path / "more.pack").write_bytes(kaggle_setup.kaggle.datasets[attached]["more.pack"])
    with ZipFile(tmp_path / "more.pack") as packed:
        assert packed.read("rose/1.jpg") == b"an image"
