"""What every stage works with: the job, with its parameters and cached results, and what is opened by it."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from competition.config.faults import fault_point
from competition.config.params import Params
from competition.files.locks import exclusive
from competition.files.manifest import (
    Manifest,
    Stored,
    changed_keys,
    read_manifest,
    write_manifest,
)
from competition.kaggle import credentials
from competition.kaggle.client import Client
from competition.training import backend
from competition.workspace.tracking import Subject, Tracked
from competition.workspace.workspace import Workspace
from pipelines.terminal import hosts
from pipelines.terminal.hosts import Hosts
from pipelines.terminal.options import Options
from pipelines.terminal.output import display_path, print_line, with_params
from pipelines.terminal.progress import Bar

if TYPE_CHECKING:  # pandas is imported by the stages that need it
    from competition.input_pipeline.decoded_cache import CacheBudget
    from competition.prepare.prepared import Prepared
    from competition.training.engine import Engine


TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}(\.\w+)?")  # as manifest.atomic_write names them
HOSTS_WAIT = 60.0  # seconds that a host waits for another one that does the same before they are connected
Computed = tuple[Iterable[Path], Mapping[str, object]]  # the files of a result, and facts for its manifest


@dataclass(frozen=True)
class Job:
    """One call of one stage: the workspace, the options, and what is printed."""

    workspace: Workspace
    options: Options
    submissions: Path
    echoed: list[str] = field(default_factory=list)
    engines: "dict[str, Engine]" = field(default_factory=dict)  # of runs, by digest, for later stages of this process
    hosts: Hosts = field(default_factory=Hosts)  # of this process, for all its stages
    at_step: Callable[[], None] = lambda: None  # called at every step of a training; may raise an error to end it

    @property
    def params(self) -> Params:
        return self.workspace.params

    @property
    def work(self) -> Path:
        """work/<competition>"""
        return self.workspace.folder

    @property
    def prepared(self) -> "Prepared":
        return self.workspace.prepared

    def echo(self, *lines: str) -> None:
        self.echoed.extend(lines)
        for bar in tuple(Bar.shown):
            bar.clear()
        for line in lines:
            named = with_params(line, display_path(self.options.params), self.options.sets)
            print_line(type(line)(named))  # stays bold, or a row of a table

    def path(self, *parts: str) -> Path:
        return self.work.joinpath(*parts)

    def cached(
        self, name: str, manifest: Path, depends: Mapping[str, object], compute: Callable[[Path], Computed]
    ) -> Manifest:
        """Return the manifest of a result; unless it is current, compute the result under its lock and write the manifest.

        depends: whatever the result depends on, by name.  compute: makes the files in a folder: that of the manifest,
        or a temporary one where another host writes them.
        """
        stored, previous, is_forced = Stored(manifest, dict(depends)), read_manifest(manifest), self.options.force
        if self.hosts.decided(previous is not None and not is_forced and stored.is_current):
            self.echo(f"{name}: current")
            return previous or hosts.written(manifest)
        if not self.hosts.writes():
            with TemporaryDirectory() as folder:
                compute(Path(folder))
            return hosts.written(manifest)
        if previous:
            changes = changed_keys(previous.depends, stored.depends)
            reason = "FORCE=1" if is_forced else "; ".join(changes[:3]) or "its files were damaged"
            self.echo(f"{name}: made again ({reason}{' ...' if len(changes) > 3 else ''})")
        started = time.monotonic()
        with lock(manifest.with_suffix(".lock"), name) as dead:
            if dead:
                self.echo(f"{name}: {dead} was killed or crashed; its complete steps are used")
            if not is_forced and not hosts.are_joined() and stored.is_current:
                self.echo(f"{name}: another process has just computed it")
                return read_manifest(manifest) or hosts.written(manifest)
            if manifest.name == "manifest.json":  # other manifests share their folder
                for leftover in manifest.parent.glob(".*.*"):
                    if leftover.is_file() and TEMPORARY.fullmatch(leftover.name):
                        leftover.unlink(missing_ok=True)
            manifest.unlink(missing_ok=True)
            files, facts = compute(manifest.parent)
            fault_point("result.before_manifest", manifest)
            measured = {"seconds": round(time.monotonic() - started, 1), "peak_memory": peak_memory()}
            # A copied result keeps the time and memory of its computation.
            written = write_manifest(manifest, stored.depends, files, {**measured, **facts}, backend.versions())
        fault_point("result.after_manifest", manifest)
        self.hosts.wait_for_all()
        return written


def peak_memory() -> int:
    """Largest resident memory so far of this process or of one that it waited for, in bytes; 0 where unknown (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * unit


def lock(path: Path, what: str = "") -> AbstractContextManager[str]:
    """Hold an exclusive lock while a result is written, see `exclusive`.  what: what this process does."""
    return exclusive(path, what or path.stem, HOSTS_WAIT if hosts.are_expected() else 0.0)


def kaggle_client(job: Job) -> Client:
    """Return a Kaggle client; print where its credential comes from, never the credential."""
    credential = credentials.find_credential(os.environ)
    job.echo(*(f"kaggle: {line}" for line in (credential, *credential.warnings)))
    return Client(os.environ, job.params.kaggle, job.echo)


def bucket_of(job: Job) -> str:
    """Address of this competition's results in storage.bucket."""
    return f"{job.params.storage.bucket.rstrip('/')}/{job.params.competition.name}"


def track(job: Job, subject: Subject) -> Tracked:
    """A run in the trackers of the parameters; in none on a host that writes no results."""
    params = job.params if job.hosts.writes() else replace(job.params, track=())
    return Tracked(params, job.work, subject, job.echo)


def image_cache(job: Job) -> "CacheBudget":
    """Folder and size limits of the cache of decoded images."""
    from competition.input_pipeline.decoded_cache import CacheBudget

    settings = job.params.cache
    folder = Path(os.path.expanduser(settings.folder)) if settings.folder else job.path("cache")
    return CacheBudget(folder, round(settings.ram_gigabytes * 1e9), round(settings.disk_gigabytes * 1e9))


def start_backend(job: Job) -> None:
    """Select the Keras backend, print it with the reason, and start TensorFlow."""
    if choice := backend.start_backend(job.params.device.backend):
        job.echo(f"backend: {choice}")
