"""What make would run: its targets with a fake `python` that records its arguments."""

import json
import os
import subprocess
import sys
from pathlib import Path

from builders import ROOT

from pipelines.terminal.cli import split_stages

FAKE_PYTHON = f"""#!{sys.executable}
import json, os, sys
if "pip" not in sys.argv:
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([*sys.argv[1:], os.environ.get("DEBUG", "")]) + "\\n")
    sys.exit(int(os.environ["CODE"]) if sys.argv[3:4] == [os.environ.get("FAILS")] else 0)
"""
READY = (".ready", ".ready-dev", ".ready-onnx", ".ready-litert", ".ready-serve")


def calls_of_make(
    folder: Path, *arguments: str, fails: str = "", code: int = 1
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run make; return it and the arguments of each process that it started, followed by the value of DEBUG.

    folder: for the fake `python`.  fails: the stage that exits with `code`.
    """
    (folder / "python").write_text(FAKE_PYTHON)
    (folder / "python").chmod(0o755)
    for ready in READY:
        (folder / ready).touch()
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    process = subprocess.run(
        ["make", f"BIN={folder}", *arguments],
        cwd=ROOT,
        env={**environment, "CALLS": str(calls), "FAILS": fails, "CODE": str(code)},
        capture_output=True,
        text=True,
    )
    return process, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def stages_of(call: list[str]) -> list[list[str]]:
    """The stages of one process, each as if it had a process of its own."""
    *arguments, debug = call
    assert arguments[:2] == ["-m", "pipelines"]
    return [["-m", "pipelines", *stage, debug] for stage in split_stages(arguments[2:])]
