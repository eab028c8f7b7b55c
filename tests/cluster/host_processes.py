"""Several processes on this machine that train one model, each as one host of JAX."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from builders import ROOT
from ray_nodes import free_port
from stages import Workspace

SETS = "device.backend=jax train.epochs={epochs} train.batch=64"
QUICK_COMPILE = {  # each host compiles for itself, which takes most of its time
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
RESULTS = ("weights.npz", "oof.npz", "history.csv")


@dataclass
class Hosts:
    """One command on each host. Their workspaces may be the same."""

    workspaces: Sequence[Workspace]
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
        """Steps of the newest checkpoint of the first host."""
        files = self.workspaces[0].work.glob("members/*/*/fold*/checkpoints/step-*.json")
        return max((int(file.stem.removeprefix("step-")) for file in files), default=0)

    def stop_one(self, number: int, signal_number: int, after: int) -> None:
        """Send the signal to one host once there is a checkpoint of more than `after` steps."""
        end = time.monotonic() + 300
        while self.newest_step() <= after:
            assert all(process.poll() is None for process in self.processes) and time.monotonic() < end, self.wait(1)
            time.sleep(0.01)
        os.kill(self.processes[number].pid, signal_number)


def start_hosts(workspaces: Sequence[Workspace], stage: str, *arguments: str, sets: str) -> Hosts:
    variables = {
        **os.environ,
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port('127.0.0.1')}",
        "JAX_NUM_PROCESSES": str(len(workspaces)),
        **QUICK_COMPILE,
    }
    processes = [
        subprocess.Popen(
            workspace.command(stage, *arguments, sets=sets),
            cwd=ROOT,
            env={**variables, "JAX_PROCESS_ID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, workspace in enumerate(workspaces)
    ]
    return Hosts(workspaces, processes)


def results_of(workspace: Workspace) -> dict[str, bytes]:
    paths = [path for name in RESULTS for path in workspace.work.glob(f"members/*/*/fold*/{name}")]
    return {path.relative_to(workspace.work).as_posix(): path.read_bytes() for path in paths}
