"""Real Ray nodes on loopback addresses, as separate processes that the test ends by their ids."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

QUICK_LOSS = {  # a dead node is noticed after 3 s instead of 20
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# Processes of Ray that nothing of ours uses: seconds of each start.
NO_SERVICES_OF_HEAD = ("--include-dashboard=false", "--no-monitor")


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def descendants(process: int) -> list[int]:
    """Ids of all processes that descend from this one, the nearest first."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    below, queue = [], [process]
    while queue:
        queue = [child for parent in queue for child in children.get(parent, [])]
        below += queue
    return below


def start_of(process: int) -> int:
    """When a process started, in clock ticks since the system did; -1 if it has ended. Ids are used again, ids with starts are not."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def processes_with(text: str) -> list[int]:
    """Ids of the processes whose command line has this text."""
    numbers = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
    return [number for number in numbers if text in command_of(number)]


@dataclass
class Node:
    """One node: its `ray start --block` process and everything below it."""

    address: str
    process: subprocess.Popen[bytes]
    starts: dict[int, int] = field(default_factory=dict)  # process id -> its start

    def processes(self) -> set[int]:
        """Ids of the processes of the node that were seen and are still there."""
        for number in (self.process.pid, *descendants(self.process.pid)):
            self.starts[number] = start_of(number)
        return {number for number, start in self.starts.items() if start != -1 and start_of(number) == start}

    def kill(self) -> None:
        """SIGKILL to all of Ray's own processes of the node; what they started must end by itself."""
        own = [number for number in self.processes() if "pipelines.execution.cluster_child" not in command_of(number)]
        for number in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.processes()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        for number in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()


@dataclass
class RayCluster:
    """Nodes with a folder each; the first one is the head."""

    folder: Path
    nodes: list[Node] = field(default_factory=list)
    temporary: str = field(
        default_factory=lambda: tempfile.mkdtemp(prefix="gfray", dir="/tmp")
    )  # sockets need a short path
    port: int = 0

    @property
    def address(self) -> str:
        return f"{self.nodes[0].address}:{self.port}"

    def start(
        self, address: str, cpus: int = 1, resources: str = "{}", prefix: tuple[str, ...] = (), **environment: str
    ) -> Node:
        """Start a node and wait until it has joined.  prefix: of the command, e.g. taskset."""
        self.port = self.port or free_port(address)
        head = ["--head", f"--port={self.port}", f"--temp-dir={self.temporary}", *NO_SERVICES_OF_HEAD]
        where = head if not self.nodes else [f"--address={self.address}"]
        home = self.folder / f"home-{address}"
        home.mkdir(parents=True, exist_ok=True)
        command = [
            *prefix, sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block",
            f"--node-ip-address={address}", f"--num-cpus={cpus}", f"--resources={resources}", "--disable-usage-stats",
            "--object-store-memory=100000000", "--include-log-monitor=false",  # of lines that nothing of ours reads
            "--min-worker-port=0", "--max-worker-port=0",  # free ones: other nodes of this machine use the same range
            *where,
        ]  # fmt: skip
        variables = {**os.environ, **QUICK_LOSS, "RAY_worker_niceness": "0", "HOME": str(home), **environment}
        with (self.folder / f"ray-{address}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, cwd=home)
        node = Node(address, process)
        self.nodes.append(node)
        self._wait_for(node)
        return node

    def _wait_for(self, node: Node) -> None:
        log, end = self.folder / f"ray-{node.address}.log", time.monotonic() + 120
        while "Ray runtime started" not in log.read_text(errors="replace"):
            assert node.process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)
        node.processes()

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)
