"""make report WATCH=1: the page follows what training writes."""

import json
import os
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from builders import ROOT
from preloaded import run_preloaded
from stages import Workspace

from competition.files.manifest import write_json
from competition.report.members import in_training
from competition.workspace.runs import runs_of

LIVE = "location.reload"


def wait_for(page: Path, text: str, watching: ForkServerProcess) -> None:
    end = time.monotonic() + 120
    while not page.exists() or text not in page.read_text("utf-8"):
        assert watching.is_alive() and time.monotonic() < end, f"not in the page: {text}"
        time.sleep(0.1)


def plant_checkpoint(fold: Path, made_from: str) -> None:
    """A checkpoint after three epochs, as training writes it."""
    history = [{"epoch": n, "loss": 1 / n, "learning_rate": 0.1} for n in (1, 2, 3)]
    (fold / "checkpoints").mkdir(exist_ok=True)
    write_json(fold / "checkpoints" / "step-00000009.json", {"made_from": made_from, "history": history})


def test_the_page_follows_the_results_until_ctrl_c(workspace: Workspace) -> None:
    file, command = workspace.work / "report.html", workspace.command("report", "--watch")

    def follow(watching: ForkServerProcess) -> None:
        wait_for(file, LIVE, watching)
        manifest = workspace.fold("slim", 2) / "manifest.json"
        plant_checkpoint(manifest.parent, json.loads(manifest.read_text())["digest"])
        manifest.unlink()
        wait_for(file, "slim fold 2, not finished: epoch ", watching)
        assert watching.pid
        os.kill(watching.pid, signal.SIGINT)

    code, out, err = run_preloaded(command[2], command[3:], ROOT, os.environ, meanwhile=follow)
    assert out.splitlines()[0].endswith("reloads itself in the browser; Ctrl-C ends it")
    assert (code, err) == (130, "goldfold: the report no longer follows the results\n")
    page = file.read_text("utf-8")
    assert LIVE not in page and "Live:" not in page and "slim fold 2, not finished" in page


def test_only_curves_of_a_model_that_would_be_continued_are_shown(workspace: Workspace) -> None:
    (run,) = runs_of(workspace.job().workspace, "slim")
    fold = workspace.fold("slim", 2)
    manifest = (fold / "manifest.json").rename(fold / "kept.json")
    digest = json.loads(manifest.read_text())["digest"]
    for made_from, epochs in (("another teacher's", []), (digest, [3])):
        plant_checkpoint(fold, made_from)
        assert [model.history["epoch"].max() for model in in_training(run, 3)] == epochs
    manifest.rename(fold / "manifest.json")  # a kill after the manifest leaves checkpoints
    assert in_training(run, 3) == []
