"""What runs on a machine of the cluster, as a Ray task: a process of its own computes, the task returns its result folder."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from competition.files.manifest import atomic_write, sha256
from competition.kernels.kernel_script import write_archive
from competition.kernels.results import install
from competition.training.backend import versions

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.queue import Queue

MACHINE_EXIT = 3  # of the process: this machine failed (disk, memory, device), another one may not
STOP_SECONDS = 60.0  # for a checkpoint after Ctrl-C
# Variables of the machine that the process must not have: OMP_NUM_THREADS is set by Ray to the CPUs of the task, and the
# process needs neither Kaggle nor Ray.
REMOVED_VARIABLES = ("OMP_NUM_THREADS", "KAGGLE_", "RAY_")
GPU_SHARE = 0.9  # of a shared GPU's memory that JAX processes take together


class TaskError(Exception):
    """An error that would be the same on another machine."""


class MachineError(Exception):
    """The process crashed or its machine failed; Ray starts the task again."""


@dataclass(frozen=True)
class TaskRequest:
    """One task: a fold model to train or to predict by, or a worker of a study."""

    name: str  # unique
    member: str
    verb: str  # train | predict | tune
    result_folder: str  # relative to work/
    values: Mapping[str, object]  # what the process computes, for pipelines.execution.cluster_child
    inputs: tuple[str, ...] = ()  # result folders that it reads
    force: bool = False  # compute although this machine has the result


@dataclass(frozen=True)
class Setup:
    """What every machine gets. A path is below the folder of the machine, or below the shared one."""

    folder: str  # cluster.folder
    shared: str  # cluster.shared; "" = data come through Ray
    files: "Mapping[str, tuple[str, ObjectRef[bytes]]]"  # path -> sha256, content; {} with a shared folder
    start_folder: str  # of the process: files whose relative paths are parameters
    records: str  # gs:// folder of the records; "" = beside the data
    # Of the process that computes, after `python`; it gets the task as a line of JSON on stdin.
    command: tuple[str, ...]
    # Result folders that are at home; a killed driver may have left the folders of their tasks.
    finished: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    archive: bytes  # of the result folder
    node: str  # Ray's id of the machine
    folder: str  # of the task there


@dataclass(frozen=True)
class Event:
    """Something that a task tells the driver."""

    task: str
    address: str
    text: str = ""  # a line of its process
    versions: Mapping[str, str] | None = None  # of the packages there, when the task starts


def compute(request: TaskRequest, setup: Setup, gpus: float, events: "Queue", *inputs: "Result | bytes") -> Result:
    """Run one task on this machine.  inputs: results or archives of request.inputs.  gpus: that the task has.

    Raises MachineError if the process crashed or the machine failed, TaskError for any other error.
    """
    import ray
    from ray.util import get_node_ip_address

    address = get_node_ip_address()
    events.put_nowait(Event(request.name, address, versions=versions()))
    own = Path(os.path.expanduser(setup.folder)) / address.replace(":", "_")
    common = Path(setup.shared) if setup.shared else own
    receive_files(common, setup.files)
    for name in setup.finished:
        shutil.rmtree(common / "tasks" / name.replace("/", "-"), ignore_errors=True)
    folder = common / "tasks" / request.result_folder.replace("/", "-")
    work = folder / "work"
    of_competition = work / request.result_folder.partition("/")[0]
    of_competition.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        data = (common / of_competition.name / "data").absolute()
        (of_competition / "data").symlink_to(data, target_is_directory=True)
    if setup.records:
        (of_competition / "resolve.json").write_text(json.dumps({"path": setup.records}))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        for name, received in zip(request.inputs, inputs, strict=True):
            packed = Path(temporary) / "archive"
            packed.write_bytes(received.archive if isinstance(received, Result) else received)
            shutil.rmtree(work / name, ignore_errors=True)  # a lost task may have left another version
            install(packed, work / name)
        if request.force:
            (work / request.result_folder / "manifest.json").unlink(missing_ok=True)
        # Not the current folder: Ray replaces it under a running worker when another node joins that shares its session's folder.
        project = Path(__file__).resolve().parents[2]
        settings = {"work": str(work), "cache": str(own / "cache"), "project": str(project), "gpus": gpus}
        start, log = common / setup.start_folder, folder / "log.txt"
        show = lambda line: events.put_nowait(Event(request.name, address, line))  # noqa: E731
        run_process(setup.command, {**asdict(request), **settings}, start, log, show)
        if not (work / request.result_folder / "manifest.json").is_file():
            raise TaskError(f"{address} has computed something else: its packages or files differ")
        result = archive(work / request.result_folder, Path(temporary))
    return Result(result, ray.get_runtime_context().get_node_id(), str(folder))


def receive_files(folder: Path, files: "Mapping[str, tuple[str, ObjectRef[bytes]]]") -> None:
    """Store the files that this machine lacks or has with another digest, once for all its tasks."""
    import ray

    with FileLock(folder / "files.lock"):
        for name, (digest, reference) in files.items():
            if not (path := folder / name).is_file() or sha256(path) != digest:
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as temporary:
                    temporary.write_bytes(ray.get(reference))


def run_process(
    command: Sequence[str], task: Mapping[str, Any], start: Path, log: Path, show: Callable[[str], None]
) -> None:
    """Run the process until it ends, and show its lines.  start: its current folder.  log: gets its lines, too."""
    start.mkdir(parents=True, exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLES)}
    # Packages that the machine has on a path of its own stay importable, after the project.
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [task["project"], variables.get("PYTHONPATH", "")]))
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if 0 < task["gpus"] < 1:
        variables["XLA_CLIENT_MEM_FRACTION"] = f"{GPU_SHARE * task['gpus']:.3f}"
    with (
        subprocess.Popen(
            [sys.executable, *command],
            cwd=start,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
        log.open("ab", buffering=0) as log_file,
    ):
        assert process.stdin is not None and process.stdout is not None
        lines, partial = list[str](), b""
        try:
            # It stays open: its end tells the process that this one has ended. A broken pipe: the process has ended, its exit
            # code says why, and closing drops what could not be written.
            try:
                process.stdin.write(json.dumps(task).encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            while True:
                # Ray interrupts a task between two calls only, not within one.
                if not select.select([process.stdout], [], [], 1.0)[0]:
                    continue
                data = os.read(process.stdout.fileno(), 65536)
                log_file.write(data)
                # At its end the last line is complete without a line break, too.
                *complete, partial = (partial + (data or b"\n")).split(b"\n")
                for line in complete:
                    if text := line.decode(errors="replace").strip():
                        lines.append(text)
                        show(text)
                if not data:
                    break
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()
            raise
    if code == 0:
        return
    sentences = [line.removeprefix("goldfold: ") for line in lines if line.startswith("goldfold: ")]
    if code == 1 and sentences:
        raise TaskError(sentences[-1])
    raise MachineError(f"the process ended with code {code} ({'; '.join(lines[-3:])}; {log})")


def archive(folder: Path, temporary: Path) -> bytes:
    """The files of a complete result folder and, last, its manifest."""
    names = [*json.loads((folder / "manifest.json").read_text())["files"], "manifest.json"]
    packed = write_archive(folder.name, folder, [folder / name for name in names], temporary)
    return (temporary / packed["file"]).read_bytes()
