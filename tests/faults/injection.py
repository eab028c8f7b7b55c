"""Run functions and stages with faults at the points of competition/config/faults.py; the faults are real signals and errors."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from builders import ROOT
from preloaded import start_process
from stages import StageResult, Workspace

INJECT = Path(__file__).parent / "inject"
ARM = f"import runpy; runpy.run_path({str(INJECT / 'sitecustomize.py')!r})"  # a new Python does so by itself
KILLED = -signal.SIGKILL


def environment(faults: str = "", **variables: str) -> dict[str, str]:
    """Variables of a process in which the faults of tests/faults/inject/sitecustomize.py happen."""
    path = os.pathsep.join([str(INJECT), str(ROOT), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "GOLDFOLD_FAULTS": faults, **variables}


def run_stage(
    workspace: Workspace, faults: str, stage: str, *arguments: str, sets: str = "", **variables: str
) -> StageResult:
    return workspace.run(stage, *arguments, sets=sets, code=ARM, **environment(faults, **variables))


def exit_code_with(faults: str, function: Callable[..., object], *arguments: object) -> int | None:
    """Exit code of a process of its own that calls function(*arguments) with these faults."""
    process = start_process(call, faults, function, *arguments)
    process.join(60)
    return process.exitcode


def call(faults: str, function: Callable[..., object], *arguments: object) -> None:
    os.environ["GOLDFOLD_FAULTS"] = faults
    exec(ARM, {})
    function(*arguments)
