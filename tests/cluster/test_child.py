"""The computing process ends when the one that started it does, however that ends."""

import os
import subprocess
import sys
import time

import pytest
from builders import ROOT
from ray_nodes import command_of

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=STDIN, stdout=subprocess.PIPE)
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
