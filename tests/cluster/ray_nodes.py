"""Real Ray nodes on loopback addresses, as separate processes that the test ends by their ids."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builders import free_port

QUICK_LOSS = {  # a dead node is noticed after 3 s instead of 20
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# Processes of Ray that nothing of ours uses: seconds of each start.
NO_SERVICES_OF_HEAD = ("--include-dashboard=false", "--no-monitor")


def process_ids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def read(process: int, file: str) -> bytes:
    """The content of a file in /proc of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""


def command_of(process: int) -> str:
    return read(process, "cmdline").replace(b"\0", b" ").decode(errors="replace")


@dataclass
class Node:
    """One node: its `ray start --block` process and every process that inherited its HOME."""

    address: str
    home: Path
    process: subprocess.Popen[bytes]

    def processes(self) -> set[int]:
        return {number for number in process_ids() if f"HOME={self.home}\0".encode() in read(number, "environ")}

    def kill(self) -> None:
        """SIGKILL to all of Ray's own processes of the node; what they started must end by itself."""
        end({number for number in self.processes() if "pipelines.execution.cluster_child" not in command_of(number)})
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        end(self.processes())
        self.process.wait()


def end(processes: Iterable[int]) -> None:
    for number in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@dataclass
class RayCluster:
    """Nodes with a folder each; the first one is the head."""

    folder: Path
    nodes: list[Node] = field(default_factory=list)
    # Sockets need a short path.
    temporary: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="gfray", dir="/tmp"))
    port: int = 0

    @property
    def address(self) -> str:
        return f"{self.nodes[0].address}:{self.port}"

    def start(self, address: str) -> Node:
        """Start a node with one CPU and wait until it has joined."""
        self.port = self.port or free_port(address)
        head = ["--head", f"--port={self.port}", f"--temp-dir={self.temporary}", *NO_SERVICES_OF_HEAD]
        where = head if not self.nodes else [f"--address={self.address}"]
        home = self.folder / f"home-{address}"
        home.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block",
            f"--node-ip-address={address}", "--num-cpus=1", "--disable-usage-stats",
            "--object-store-memory=100000000", "--include-log-monitor=false",  # of lines that nothing of ours reads
            "--min-worker-port=0", "--max-worker-port=0",  # free ones: other nodes of this machine use the same range
            *where,
        ]  # fmt: skip
        variables = {**os.environ, **QUICK_LOSS, "RAY_worker_niceness": "0", "HOME": str(home)}
        with (self.folder / f"ray-{address}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, cwd=home)
        self.nodes.append(node := Node(address, home, process))
        limit = time.monotonic() + 120
        while "Ray runtime started" not in (text := Path(log.name).read_text(errors="replace")):
            assert process.poll() is None and time.monotonic() < limit, text[-3000:]
            time.sleep(0.2)
        return node

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)


@contextlib.contextmanager
def ray_nodes(folder: Path, *addresses: str) -> Iterator[RayCluster]:
    """A cluster of nodes with one CPU each, for a block. The first one that is started is the head. Skips the test without Ray."""
    pytest.importorskip("ray", reason="Ray is not installed (goldfold[cluster])")
    if sys.platform != "linux":
        pytest.skip("Ray nodes on several loopback addresses need Linux")
    cluster = RayCluster(folder)
    try:
        for address in addresses:
            cluster.start(address)
        yield cluster
    finally:
        cluster.stop()
