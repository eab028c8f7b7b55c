"""`make kernel` as a real process that is killed during the push: one session at Kaggle, whose results are imported."""

import json
import signal
import sys
from pathlib import Path

import pytest
from world import ROOT

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from fake_kaggle.world import FILES
from light import set_up


@pytest.fixture
def desk(tmp_path):
    (tmp_path / "server").mkdir()
    with FakeKaggle(tmp_path / "server") as kaggle:
        kaggle.contests["flowers"] = Contest(FILES)
        kaggle._run_kernel = lambda run: setattr(run, "status", "COMPLETE")  # the test writes its output
        yield set_up(kaggle, tmp_path, ROOT)


def test_a_killed_push_is_resumed_and_a_damaged_output_is_downloaded_again(desk) -> None:
    desk.kaggle.faults["SaveKernel"] = ["after:hold"]
    desk.kaggle.unlisted_looks = 2
    process = desk.start("kernel")
    assert desk.kaggle.held.wait(300), process.communicate(timeout=1)
    assert "is in use by another run" in desk.refused("kernel")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    desk.kaggle.released.set()
    (run,) = desk.kaggle.kernels["ada/goldfold-small"]
    output = run.folder / "working" / "goldfold-output.json"
    output.parent.mkdir(parents=True)
    output.write_text("{")
    error = desk.refused("kernel")
    assert "is damaged: `make kernel` fetches it again" in error and "FORCE" not in error
    name = json.loads((desk.place.work / "kernel" / "run.json").read_text())["run"]
    output_listing = {"run": name, "status": "done", "code": 0, "problem": "", "devices": "", "units": [], "seconds": 1}
    output.write_text(json.dumps(output_listing))
    assert f"resuming run {name}, version 1" in desk.do("kernel")
    assert desk.kaggle.count("SaveKernel") == 1


def test_a_push_with_unknown_outcome_is_repeated_only_on_request(desk) -> None:
    desk.kaggle.faults["SaveKernel"] = ["503"]
    error = desk.refused("kernel", sets="kaggle.listing_lag=0")
    assert "it is unknown whether Kaggle runs ada/goldfold-small" in error and "`make kernel AGAIN=1` pushes" in error
    assert "it is unknown" in desk.refused("kernel", sets="kaggle.listing_lag=0")
    assert desk.kaggle.count("SaveKernel") == 1
    assert "left no goldfold-output.json" in desk.refused("kernel", "--again")
    assert desk.kaggle.count("SaveKernel") == 2
