"""Commands that neither train nor predict start without the large packages, and end quietly when nobody reads them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT
from stages import Workspace

# None of these is needed to read results; each takes a tenth of a second up to some seconds to import.
HEAVY = {"tensorflow", "keras", "jax", "ray", "plotly", "matplotlib", "scipy", "sklearn", "optuna", "cv2", "kaggle"}
CHARTS = {"scipy", "matplotlib", "plotly", "optuna", "sklearn"}  # charts, importance of tuned parameters, the map


@pytest.fixture(scope="module")
def workspace(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return finished.copy_to(tmp_path_factory.mktemp("light"))


def imported(workspace: Workspace, stages: list[list[str]]) -> set[str]:
    """The packages that one process imports in which these stages run one after another."""
    arguments = [word for words in stages for word in ("+", *workspace.command(*words)[3:])][1:]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", "pipelines", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-2000:]}"
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines() if "|" in line}


def test_commands_that_read_results_import_no_large_package_and_others_only_what_they_compute_with(workspace) -> None:
    (file,), run = workspace.submissions.glob("*.csv"), workspace.fold("slim", 0).parent.name[:8]
    both = ["--a", file.stem[:6], "--b", file.stem]  # the only submission twice
    listing = [[stage] for stage in ("download", "prepare", "resolve", "tune", "train", "predict", "blend")]  # current
    listing += [["runs"], ["folds"], ["compare-submissions", *both], ["grade"], ["submissions"], ["leaderboard"]]
    listing += [["prune"], ["adopt", "--run", f"slim@{run}"], ["doctor", "--explain", "No TPU platform found"]]
    packages = imported(workspace, listing)
    assert "pandas" in packages and HEAVY & packages == set()
    an_exact_test = imported(workspace, [["compare-blends", *both]])
    assert (HEAVY - {"scipy"}) & an_exact_test == set()
    assert (HEAVY - CHARTS) & imported(workspace, [["list-blends"], ["report"]]) == set()


def without_reader(command: list[str], **streams: int) -> "subprocess.CompletedProcess[str]":
    """Run a command with stdout, or what `streams` names, on a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        targets = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **dict.fromkeys(streams, writing)}
        return subprocess.run(command, cwd=ROOT, text=True, **targets)
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    ("closed", "verb", "arguments"),
    [
        ("stdout", "runs", ("+", "report")),  # which is then not begun
        ("stderr", "adopt", ("--run", "slim@00000000")),  # an error
    ],
)
def test_a_closed_pipe_ends_a_command_quietly(workspace: Workspace, closed: str, verb: str, arguments) -> None:
    report = workspace.work / "report.html"
    report.unlink(missing_ok=True)
    result = without_reader(workspace.command(verb, *arguments), **{closed: True})
    assert (result.returncode, result.stdout or "", result.stderr or "") == (141, "", "")
    assert not report.exists()


def test_a_run_without_all_fold_models_is_listed_as_incomplete(workspace: Workspace, tmp_path: Path) -> None:
    copy = workspace.copy_to(tmp_path)
    shutil.rmtree(copy.fold("wide", 1))
    output = copy.do("runs")
    assert re.search(r"^wide@\w+ \* .* 2/3 incomplete ", output, re.MULTILINE)
    assert re.search(r"^slim@\w+ \* .* 3/3  ", output, re.MULTILINE)
