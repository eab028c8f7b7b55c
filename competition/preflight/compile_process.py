"""Starts the child process that lowers and compiles (child.py), watches it and reads its results."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.config.params import Member
from competition.config.plugins import active
from competition.files.manifest import write_json
from competition.preflight.lowering import one_line
from competition.preflight.pairs import ROOT
from competition.preflight.request import PreflightRequest

Report = Callable[[str, int], None]  # (activity, seconds spent on it)


def results_of_child(
    request: PreflightRequest, steps: Sequence[str], report: Report, limit_seconds: float
) -> dict[str, dict[str, Any]]:
    """Raw results by step; a step that ended the process is "crashed", and so are the later ones."""
    with tempfile.TemporaryDirectory() as name:
        request_file, result_file, folder = Path(name) / "request.json", Path(name) / "result.json", Path(name)
        plugins, member = active().file, _with_absolute_paths(request.member)
        content = {"topology": request.topology.name, "plugins": plugins.resolve() if plugins else "", "steps": steps}
        write_json(request_file, {**vars(request), **content, "member": member})
        command = [request.pair.interpreter, "-m", "competition.preflight.child", str(request_file), str(result_file)]
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            child = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, stdin=subprocess.PIPE)
            try:
                _watch(child, folder / "out", report, limit_seconds)
            finally:
                child.kill()
                child.wait()
        raw: dict[str, dict[str, Any]] = json.loads(result_file.read_text()) if result_file.exists() else {}
        message = f"the compiler's process ended with {child.returncode}: {_last_line(folder / 'err')}"
    return {step: raw.get(step) or {"verdict": "crashed", "message": one_line(message)} for step in steps}


def _with_absolute_paths(member: Member) -> Member:
    """The member as the child process needs it, whose current folder is the project's."""
    path = Path(member.weights)
    return replace(member, weights=str(path.resolve())) if path.exists() else member


def _watch(child: Any, out: Path, report: Report, limit_seconds: float) -> None:
    """Report the last output line of the child until it ends or `limit_seconds` have passed."""
    started, line, since = time.monotonic(), "", time.monotonic()
    while child.poll() is None and time.monotonic() - started < limit_seconds:
        time.sleep(0.2)
        latest = (out.read_text().splitlines() or [""])[-1]
        if latest != line:
            line, since = latest, time.monotonic()
        report(line or "starting", int(time.monotonic() - since))


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
