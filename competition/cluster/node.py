"""What runs on a machine of the cluster, in Ray's worker processes: it stores files and runs the process that computes.

Ray sends the source of this module and of kernel_script to the machines, because another version of the project may be
installed there. Therefore both use the standard library only. Paths of results ("units") are relative to work/.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from competition.kernels.kernel_script import pack, unzip, write_atomically

MANIFEST = "manifest.json"
LOG_LINES = 3  # of the log, reported with a process that ended
# Variables of the machine that the computing process must not have: OMP_NUM_THREADS is set to 1 by Ray, and the process
# needs neither Kaggle nor Ray.
REMOVED_VARIABLES = ("OMP_NUM_THREADS", "KAGGLE_", "RAY_")


class Machine:
    """The folder of one machine: receives the project and the data, and keeps results until they are fetched."""

    def __init__(self, folder: str, address: str) -> None:
        """folder: cluster.folder.  address: of the machine; machines that share the folder have a part of it each."""
        self.root = Path(os.path.expanduser(folder)) / address.replace(":", "_")
        self.work = self.root / "work"

    def set_up(self, project: bytes, digest: str, packages: list[str]) -> dict[str, Any]:
        """Unpack the project (a zip with this sha256) and say what the machine is: folder, niceness, versions."""
        if hashlib.sha256(project).hexdigest() != digest:
            raise RuntimeError("the project was damaged on its way")
        target = self.root / f"project-{digest[:12]}"
        if not target.is_dir():
            with temporary_folder(self.root) as folder:
                unzip(io.BytesIO(project), folder / "project")
                with contextlib.suppress(OSError):  # another process was faster
                    (folder / "project").rename(target)
        versions = {"python": ".".join(map(str, sys.version_info[:3]))}
        for package in packages:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        return {"root": str(self.root), "project": str(target), "versions": versions}

    def missing(self, files: dict[str, str]) -> list[str]:
        """Names of the files that this machine lacks or has with another digest.  files: path below work/ -> sha256."""
        return [name for name, digest in files.items() if _sha256(self._path(name)) != digest]

    def receive(self, name: str, digest: str, data: bytes) -> None:
        """Store a file below work/."""
        if hashlib.sha256(data).hexdigest() != digest:
            raise RuntimeError(f"{name} was damaged on its way")
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    def results(self, units: list[str]) -> dict[str, bool]:
        """The units that this machine has from an earlier run: True = complete, False = with a checkpoint."""
        complete = {unit: True for unit in units if (self._path(unit) / MANIFEST).is_file()}
        partial = {unit: False for unit in units if any((self._path(unit) / "checkpoints").glob("*.json"))}
        return {**partial, **complete}

    def fetch(self, unit: str) -> tuple[str, bytes]:
        """(sha256, bytes) of the pack of a complete unit."""
        with temporary_folder(self.root) as folder:
            return packed(unit, self._path(unit), folder)

    def remove(self, unit: str) -> None:
        """Remove a unit that was brought home, and the folders that are empty then."""
        shutil.rmtree(self._path(unit), ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.work.joinpath(*safe_parts(name))


class Worker:
    """One slot: a computing process that is started by its first task and keeps its member compiled for the next ones."""

    def __init__(self, command: list[str], settings: dict[str, Any], log: str) -> None:
        """command: of the process, started in settings["project"] with `settings` as JSON for its last argument."""
        self._command, self._settings, self._log = command, settings, Path(log)
        self._machine_work = Path(settings["root"]) / "work"
        self._process: subprocess.Popen[bytes] | None = None
        self._events: list[dict[str, Any]] = []
        self._pipe = -1
        self._partial = b""
        self._count = 0

    def install(self, unit: str, digest: str, data: bytes) -> None:
        """Store a result that a task reads: a teacher's fold model, or the fold model that predicts."""
        target = self._machine_work.joinpath(*safe_parts(unit))
        if hashlib.sha256(data).hexdigest() != digest:
            raise RuntimeError(f"{unit} was damaged on its way")
        with temporary_folder(target.parent) as folder:
            unzip(io.BytesIO(data), folder / "unit")
            manifest = target / MANIFEST
            if manifest.is_file() and manifest.read_bytes() == (folder / "unit" / MANIFEST).read_bytes():
                return
            shutil.rmtree(target, ignore_errors=True)
            (folder / "unit").rename(target)

    def start(self, request: dict[str, Any]) -> None:
        """Give a task to the process."""
        if self._process is None:
            self._start_process()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the next events() says so
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def events(self, after: int, seconds: float) -> list[dict[str, Any]]:
        """Events with a number above `after`; waits at most `seconds` for one. Events are kept until they are acknowledged.

        A finished task comes with its packed result.
        """
        self._events = [event for event in self._events if event["number"] > after]
        end = time.monotonic() + seconds
        while not self._events and time.monotonic() < end:
            if self._process is None:
                time.sleep(min(0.1, seconds))
            elif select.select([self._pipe], [], [], max(end - time.monotonic(), 0))[0]:
                self._read()
        return self._events

    def stop(self) -> None:
        """Ask the process to write a checkpoint and end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def _start_process(self) -> None:
        self._pipe, write_end = os.pipe()
        # The niceness of the machine's Ray, not the one that Ray gives to its workers.
        settings = {**self._settings, "events": write_end, "parent": os.getpid(), "niceness": _niceness(os.getppid())}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLES)}
        environment["PYTHONPATH"] = settings["project"]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command, json.dumps(settings)],
                cwd=settings["project"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[write_end],
            )
        os.close(write_end)

    def _read(self) -> None:
        data = os.read(self._pipe, 65536)
        if not data:
            self._end()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "done":
                folder = self._machine_work.joinpath(*safe_parts(event["unit"]))
                with temporary_folder(Path(self._settings["root"])) as temporary:
                    event["digest"], event["pack"] = packed(event["unit"], folder, temporary)
            self._add(event)

    def _end(self) -> None:
        assert self._process is not None
        os.close(self._pipe)
        code = self._process.wait()
        with self._log.open("rb") as log:
            log.seek(max(self._log.stat().st_size - 4096, 0))
            lines = log.read().decode(errors="replace").strip().splitlines()
        self._add({"event": "ended", "code": code, "log": str(self._log), "lines": lines[-LOG_LINES:]})
        self._process, self._partial = None, b""

    def _add(self, event: dict[str, Any]) -> None:
        self._count += 1
        self._events.append({**event, "number": self._count})


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder in `parent`, which is created if it is missing; removed at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=parent) as folder:
        yield Path(folder)


def packed(unit: str, folder: Path, temporary: Path) -> tuple[str, bytes]:
    """(sha256, bytes) of the pack of a complete result: the files of its manifest and, last, the manifest."""
    names = [*json.loads((folder / MANIFEST).read_text())["files"], MANIFEST]
    about = pack(unit, folder, [folder / name for name in names], temporary)
    return about["sha256"], (temporary / about["file"]).read_bytes()


def safe_parts(name: str) -> tuple[str, ...]:
    """Parts of a relative path; ValueError if it leaves its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} leaves its folder")
    return path.parts


def _niceness(process: int) -> int:
    try:
        return os.getpriority(os.PRIO_PROCESS, process)
    except OSError:
        return 0


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
