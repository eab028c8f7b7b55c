"""Runs the kernels of the fake Kaggle server in a process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from fake_kaggle.parts import Run

HIDE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hide())
"""


def run_kernel(
    run: Run, sources: Mapping[str, Mapping[str, bytes]], hidden: Sequence[str], extra_environment: Mapping[str, str]
) -> None:
    """Execute the pushed script in a clean folder: ./working, ../input/<competition>, ../input/<dataset>.

    sources: name below ../input -> file -> bytes.  hidden: modules that cannot be imported.
    extra_environment: further environment variables.
    """
    working = run.folder / "working"
    working.mkdir(parents=True)
    for name, files in sources.items():
        for file, data in files.items():
            path = run.folder / "input" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    site = run.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HIDE.format(hidden=tuple(hidden)))
    script, text = run.folder / "script.py", run.request["text"]
    if run.request["kernelType"] == "notebook":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script.write_text(text)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(run.folder),
        "PYTHONPATH": str(site),
        **extra_environment,
    }
    run.status = "RUNNING"
    process = subprocess.Popen(
        [sys.executable, "-u", str(script)],
        cwd=working,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    for line in process.stdout:
        run.log.append(line)
    run.failure = "" if process.wait() == 0 else f"Your code exited with {process.returncode}"
    run.status = "ERROR" if process.returncode else "COMPLETE"
