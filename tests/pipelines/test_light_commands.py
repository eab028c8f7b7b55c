"""Commands that neither train nor predict start without the large packages, and end quietly when nobody reads them."""

import os
import subprocess
import sys

from builders import ROOT
from stages import Workspace

# None of these is needed to read results; each takes a tenth of a second up to some seconds to import.
HEAVY = {"tensorflow", "keras", "jax", "ray", "plotly", "matplotlib", "scipy", "sklearn", "optuna", "cv2", "kaggle"}
CHARTS = {"scipy", "matplotlib", "plotly", "optuna", "sklearn"}  # charts, importance of tuned parameters, the map


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
    packages = imported(workspace, [["compare-blends", *both], ["list-blends"], ["report"]])
    assert (HEAVY - CHARTS) & packages == set()


def test_a_closed_pipe_ends_a_command_quietly(workspace: Workspace) -> None:
    for closed, words in (
        ("stdout", ("runs", "+", "report")),  # which is then not begun
        ("stderr", ("adopt", "--run", "slim@00000000")),  # an error
    ):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as nobody:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: nobody}
            result = subprocess.run(workspace.command(*words), cwd=ROOT, text=True, **streams)
        assert (result.returncode, result.stdout or "", result.stderr or "") == (141, "", ""), closed
    assert not (workspace.work / "report.html").exists()
