"""Runs the kernels of the fake Kaggle server in a process."""

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from builders import ROOT
from forked_python import ForkedPython
from preloaded import become, start_process

from fake_kaggle.parts import Run

PROJECT = ("competition", "pipelines", "goldfold")

HIDE = """
import socket
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

# Without an editable installation of the project: a kernel has only what was sent.
sys.meta_path[:] = [Hide(), *(finder for finder in sys.meta_path if not finder.__module__.startswith("__editable__"))]

def refuse(address, *stated, connect=socket.create_connection, **named):
    if address[0] not in ("127.0.0.1", "localhost"):
        raise OSError("a kernel of the tests has no internet")
    return connect(address, *stated, **named)

socket.create_connection = refuse
"""


def run_forked(
    script: Path, working: Path, environment: dict[str, str], site: Path, hidden: tuple[str, ...], output: Connection
) -> None:
    """Run the script without the project and the hidden packages, which the server has imported."""
    become(working, environment, output.fileno(), output.fileno())
    tempfile.tempdir = None  # that of this environment
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for name in [name for name in sys.modules if name.split(".")[0] in {*PROJECT, *hidden}]:
        del sys.modules[name]
    tests = ROOT / "tests"
    others = [path for path in sys.path if path != str(ROOT) and not Path(path).is_relative_to(tests)]
    sys.path[:] = [str(script.parent), *others]
    sys.argv = [str(script)]
    runpy.run_path(str(site / "sitecustomize.py"))
    subprocess.Popen = ForkedPython  # type: ignore[assignment,misc]
    runpy.run_path(str(script), run_name="__main__")


def run_kernel(
    run: Run,
    sources: Mapping[str, Mapping[str, bytes]],
    hidden: Sequence[str],
    extra_environment: Mapping[str, str],
    is_forked: bool,
    python: str,
) -> None:
    """Execute the pushed script in a clean folder: ./working, ../input/<competition>, ../input/<dataset>.

    sources: name below ../input -> file -> bytes.  hidden: modules that cannot be imported.
    extra_environment: further environment variables.  is_forked: the script and its stages are not new processes, but forked
    from one that has imported the large packages, which saves seconds of each.  python: that runs the script otherwise.
    """
    working, site = run.folder / "working", run.folder / "site"
    for folder in (working, site):
        folder.mkdir(parents=True)
    for path, data in (
        (run.folder / "input" / name / file, data) for name in sources for file, data in sources[name].items()
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (site / "sitecustomize.py").write_text(HIDE.format(hidden=tuple(hidden)))
    script, text = run.folder / "script.py", run.request["text"]
    if run.request["kernelType"] == "notebook":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script.write_text(text)
    run.status = "RUNNING"
    with tempfile.TemporaryDirectory() as scratch:  # where the script unpacks; a machine of Kaggle is thrown away
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(run.folder),
            "PYTHONPATH": str(site),
            "TMPDIR": scratch,
            **extra_environment,
        }
        if is_forked:
            output, sent = multiprocessing.Pipe(duplex=False)
            forked = start_process(run_forked, script, working, environment, site, tuple(hidden), sent)
            sent.close()
            with output, open(output.fileno(), closefd=False, encoding="utf-8") as lines:
                run.log.extend(iter(lines.readline, ""))
            forked.join()
            code = forked.exitcode
        else:
            options = {"cwd": working, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            with subprocess.Popen([python, "-u", str(script)], text=True, **options) as new:
                assert new.stdout
                run.log.extend(iter(new.stdout.readline, ""))
            code = new.returncode
    run.failure = "" if code == 0 else f"Your code exited with {code}"
    run.status = "ERROR" if code else "COMPLETE"
