"""The computing process ends when the one that started it does, however that ends."""

import os
import subprocess
import sys
import textwrap
import time

import pytest
from builders import ROOT
from ray_nodes import command_of

from pipelines.terminal.cluster_child import kinds_of

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
CHILD = """
import os, time
from pipelines.terminal.cluster_child import bind_to_parent
bind_to_parent(os.getppid())
print("bound", flush=True)
time.sleep(600)
"""


def has_ended(process: int) -> bool:
    """Wait at most 20 s for the end of a process."""
    end = time.monotonic() + 20
    while command_of(process) and time.monotonic() < end:
        time.sleep(0.05)
    return not command_of(process)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux'")
def test_it_dies_with_its_parent() -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, env=variables, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert "bind_to_parent" in command_of(child)
    parent.kill()
    parent.wait()
    assert has_ended(child)


def test_it_ends_when_nobody_can_give_it_tasks() -> None:
    code = (
        "import time; from pipelines.terminal.cluster_child import requests; print(next(requests())); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    process.communicate(textwrap.dedent('{"unit": "x"}\n').encode(), timeout=60)
    assert process.returncode == 1


def test_the_causes_of_an_error_count_as_its_kinds() -> None:
    try:
        try:
            raise OSError("disk")
        except OSError as error:
            raise ValueError("result") from error
    except ValueError as error:
        assert {"ValueError", "OSError"} <= set(kinds_of(error))
    assert kinds_of(None) == []
