import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from builders import ROOT
from preloaded import ForkedPython, become, start_process

from fake_kaggle.parts import Run

if TYPE_CHECKING:
    from fake_kaggle.server import FakeKaggle

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


def run_forked(folder: Path, environment: dict[str, str], hidden: tuple[str, ...], output: Connection) -> None:
    """Run the script in `folder` without the project and the hidden packages, which the server has imported."""
    become(folder / "working", environment, output.fileno(), output.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for name in [name for name in sys.modules if name.split(".")[0] in {*PROJECT, *hidden}]:
        del sys.modules[name]
    tests = ROOT / "tests"
    others = [path for path in sys.path if path != str(ROOT) and not Path(path).is_relative_to(tests)]
    sys.path[:] = [str(folder), *others]
    sys.argv = [str(folder / "script.py")]
    runpy.run_path(str(folder / "site" / "sitecustomize.py"))
    subprocess.Popen = ForkedPython  # type: ignore[assignment,misc]
    runpy.run_path(sys.argv[0], run_name="__main__")


def run_kernel(kaggle: "FakeKaggle", run: Run) -> None:
    """Execute the pushed script in a clean folder: ./working, ../input/<competition>, ../input/<dataset>."""
    working, site = run.folder / "working", run.folder / "site"
    for folder in (working, site):
        folder.mkdir(parents=True)
    sources = {slug: kaggle.contests[slug].files for slug in run.request.get("competitionDataSources", [])}
    sources |= {ref.split("/")[1]: kaggle.datasets.get(ref, {}) for ref in run.request.get("datasetDataSources", [])}
    for name, files in sources.items():
        for file, data in files.items():
            path = run.folder / "input" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (site / "sitecustomize.py").write_text(HIDE.format(hidden=kaggle.hidden_modules))
    script, text = run.folder / "script.py", run.request["text"]
    if run.request["kernelType"] == "notebook":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script.write_text(text)
    run.status = "RUNNING"
    with tempfile.TemporaryDirectory() as scratch:  # where the script unpacks; a machine of Kaggle is thrown away
        own = {"PATH": os.environ["PATH"], "HOME": str(run.folder), "PYTHONPATH": str(site), "TMPDIR": scratch}
        environment = {**own, **kaggle.kernel_environment}
        if kaggle.forks_kernels:
            output, sent = multiprocessing.Pipe(duplex=False)
            forked = start_process(run_forked, run.folder, environment, kaggle.hidden_modules, sent)
            sent.close()
            with output, open(output.fileno(), closefd=False, encoding="utf-8") as lines:
                run.log.extend(iter(lines.readline, ""))
            forked.join()
            code = forked.exitcode
        else:
            options = {"cwd": working, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            with subprocess.Popen([kaggle.kernel_python, "-u", str(script)], text=True, **options) as new:
                assert new.stdout
                run.log.extend(iter(new.stdout.readline, ""))
            code = new.returncode
    run.failure = "" if code == 0 else f"Your code exited with {code}"
    run.status = "ERROR" if code else "COMPLETE"
