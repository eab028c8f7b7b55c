"""One model trained by several hosts (JAX): processes of this machine that are stopped one by one."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import ROOT
from ray_nodes import free_port
from stages import Workspace

pytest.importorskip("jax", reason="several hosts need JAX (goldfold[jax])")
pytestmark = pytest.mark.timeout(900)
SETS = "device.backend=jax train.epochs=4 train.batch=64"
QUICK_COMPILE = {  # each host compiles for itself, which takes most of its time
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
RESULTS = ("weights.npz", "oof.npz", "history.csv")


@dataclass
class Hosts:
    """One command on each of two hosts that share a workspace."""

    workspace: Workspace
    processes: list[subprocess.Popen[str]]

    def wait(self, seconds: float = 300) -> list[tuple[int, str, str]]:
        """(exit code, stdout, stderr) of each."""
        end = time.monotonic() + seconds
        try:
            outputs = [process.communicate(timeout=max(end - time.monotonic(), 1)) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return [(process.returncode, *output) for process, output in zip(self.processes, outputs, strict=True)]

    def newest_step(self) -> int:
        """Steps of the newest checkpoint."""
        files = self.workspace.work.glob("members/*/*/fold*/checkpoints/step-*.json")
        return max((int(file.stem.removeprefix("step-")) for file in files), default=0)


def start_hosts(workspace: Workspace) -> Hosts:
    hosts = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port('127.0.0.1')}",
        "JAX_NUM_PROCESSES": "2",
        **QUICK_COMPILE,
    }
    command = workspace.command("train", "--member", "slim", "--fold", "0", sets=SETS)
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    numbered = ({**os.environ, **hosts, "JAX_PROCESS_ID": str(number)} for number in range(2))
    return Hosts(workspace, [subprocess.Popen(command, env=variables, **options) for variables in numbered])


def results_of(workspace: Workspace) -> list[Path]:
    return [path for name in RESULTS for path in workspace.work.glob(f"members/*/*/fold*/{name}")]


@pytest.mark.long
def test_two_hosts_in_one_folder_stop_together_and_continue_and_only_the_first_one_writes(untrained: Workspace) -> None:
    hosts, end = start_hosts(untrained), time.monotonic() + 300
    while not hosts.newest_step():
        assert all(process.poll() is None for process in hosts.processes) and time.monotonic() < end, hosts.wait(1)
        time.sleep(0.01)
    hosts.processes[1].send_signal(signal.SIGTERM)
    outputs = hosts.wait()
    assert [code for code, _, _ in outputs] == [143, 143], outputs
    reached = hosts.newest_step()
    assert reached and not results_of(untrained)
    assert f"stopped after step {reached} of" in outputs[0][1] and "stopped after" not in outputs[1][1]
    outputs = start_hosts(untrained).wait()
    assert [code for code, _, _ in outputs] == [0, 0], outputs
    assert ["held-out rows" in out for _, out, _ in outputs] == [True, False]
    assert len(results_of(untrained)) == 3 and hosts.newest_step() == 0
