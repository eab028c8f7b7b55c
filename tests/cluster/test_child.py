"""The computing process ends when the one that started it does, however that ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import ROOT
from ray_nodes import command_of

from competition.cluster.node import TaskError, run_process

ENDS_AT_ONCE = "import os; os.write(2, b'goldfold: the file x is missing'); os._exit(1)"  # reads nothing, no line break
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=STDIN, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
CHILD = """
import os, time
from pipelines.execution.cluster_child import bind_to_parent
bind_to_parent(os.getppid())
print("bound", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux'")
def test_it_dies_with_its_parent_although_its_stdin_stays_open() -> None:
    read_end, write_end = os.pipe()
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT.replace("STDIN", str(read_end)), CHILD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, text=True, pass_fds=[read_end])
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert "bind_to_parent" in command_of(child)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 20
    while command_of(child) and time.monotonic() < end:
        time.sleep(0.05)
    os.close(write_end)
    assert not command_of(child)


@pytest.mark.parametrize("task_bytes", [10, 1_000_000])  # a pipe holds 65,536
def test_what_a_process_says_before_it_ends_at_once_is_its_error(tmp_path: Path, task_bytes: int) -> None:
    task, lines = {"project": str(ROOT), "gpus": 0.0, "values": "x" * task_bytes}, list[str]()
    with pytest.raises(TaskError, match=r"^the file x is missing$"):
        run_process(("-c", ENDS_AT_ONCE), task, tmp_path / "start", tmp_path / "log.txt", lines.append)
    assert lines == ["goldfold: the file x is missing"] and (tmp_path / "log.txt").read_text() == lines[0]
