"""What make would run: its targets with a fake `python` that records its arguments."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from builders import ROOT

from pipelines.terminal import cli
from pipelines.terminal.options import Options

FAKE_PYTHON = f"""#!{sys.executable}
import json, os, sys
if "pip" not in sys.argv:
    with open(os.environ["CALLS"], "a") as file:
        given = {{name: value for name, value in os.environ.items() if name.startswith("GOLDFOLD_")}}  # no secret of the caller
        file.write(json.dumps([sys.argv[1:], given]) + "\\n")
    code = int(os.environ["CODE"]) if os.environ.get("FAILS") in sys.argv else 0
    os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""
READY = (".ready", ".ready-dev", ".ready-onnx", ".ready-serve")


Process = tuple[list[str], dict[str, str]]  # the arguments of a process and its environment


def make_executable(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def calls_of_make(
    folder: Path, *arguments: str, fails: str = "", code: int = 1
) -> tuple[subprocess.CompletedProcess[str], list[Process]]:
    """Run make; return it and the processes that it started.

    folder: for the fake `python`.  fails: the verb whose process exits with `code`, or is ended by the signal -code.
    """
    make_executable(folder / "python", FAKE_PYTHON)
    for ready in READY:
        (folder / ready).touch()
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    command, variables = ["make", f"BIN={folder}", *arguments], {"CALLS": str(calls), "FAILS": fails, "CODE": str(code)}
    process = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True)
    return process, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


@dataclass(frozen=True)
class Stage:
    name: str
    options: Options
    following: str  # the verb that is named as the next one


def stages_of(process: Process) -> list[Stage]:
    """The stages that the goldfold command runs with these arguments and this environment."""
    arguments, environment = process
    assert arguments[:2] == ["-m", "pipelines"]
    stages: list[Stage] = []

    def record(module: str, verb: str, options: Options, following: str, *of_process: object) -> None:
        stages.append(Stage(verb, options, following))

    with (
        patch.object(cli, "run_stage", record),
        patch.dict(os.environ, environment, clear=True),
        patch.object(sys, "argv", ["goldfold", *arguments[2:]]),
        suppress(SystemExit),
    ):
        cli.main()
    return stages
