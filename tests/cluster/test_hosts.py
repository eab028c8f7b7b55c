"""One model trained by several hosts (JAX): processes of this machine that are stopped one by one."""

import os
import signal
import subprocess
import time

import pytest
from builders import ROOT, free_port
from stages import Workspace

pytest.importorskip("jax", reason="several hosts need JAX (goldfold[jax])")
pytestmark = pytest.mark.timeout(900)
SETS = "device.backend=jax train.epochs=4 train.batch=64"
QUICK_COMPILE = {  # each host compiles for itself, which takes most of its time
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
Host = subprocess.Popen[str]


def started_hosts(workspace: Workspace) -> list[Host]:
    """One `make train` on each of two hosts that share a workspace."""
    address = f"127.0.0.1:{free_port()}"
    variables = {**os.environ, **QUICK_COMPILE, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    command = workspace.command("train", "--member", "slim", "--fold", "0", sets=SETS)
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen(command, env={**variables, "JAX_PROCESS_ID": n}, **options) for n in "01"]


def ends_of(hosts: list[Host], seconds: float = 300) -> list[tuple[int, str]]:
    try:
        outputs = [host.communicate(timeout=seconds)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    return [(host.returncode, output) for host, output in zip(hosts, outputs, strict=True)]


def newest_step(workspace: Workspace) -> int:
    files = workspace.work.glob("members/*/*/fold*/checkpoints/step-*.json")
    return max((int(file.stem.removeprefix("step-")) for file in files), default=0)


@pytest.mark.long
def test_two_hosts_in_one_folder_stop_together_and_continue_and_only_the_first_one_writes(untrained: Workspace) -> None:
    hosts, end = started_hosts(untrained), time.monotonic() + 300
    while not newest_step(untrained):
        assert all(host.poll() is None for host in hosts) and time.monotonic() < end, ends_of(hosts, 1)
        time.sleep(0.01)
    hosts[1].send_signal(signal.SIGTERM)
    (first_code, first), (second_code, second) = ends_of(hosts)
    assert (first_code, second_code) == (143, 143), first + second
    reached = newest_step(untrained)
    assert reached and not untrained.weights()
    assert f"stopped after step {reached} of" in first and "stopped after" not in second
    (first_code, first), (second_code, second) = ends_of(started_hosts(untrained))
    assert (first_code, second_code) == (0, 0), first + second
    assert "held-out rows" in first and "held-out rows" not in second
    assert untrained.weights().keys() == {"slim/fold0"} and not newest_step(untrained)
