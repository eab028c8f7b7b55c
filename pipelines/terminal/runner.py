"""What every stage works with: the job, with its parameters and cached results, and what is opened by it."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.faults import fault_point
from competition.config.params import Params
from competition.config.params_file import Override
from competition.files.locks import Holder, exclusive
from competition.files.manifest import (
    Manifest,
    Stored,
    changed_keys,
    discarded_writes,
    read_manifest,
    write_manifest,
)
from competition.kaggle import credentials
from competition.kaggle.client import Client
from competition.training import backend
from competition.workspace.tracking import Subject, Tracked
from competition.workspace.workspace import Workspace
from pipelines.terminal import hosts
from pipelines.terminal.options import Options
from pipelines.terminal.output import display_path, print_line, with_params
from pipelines.terminal.progress import Bar
from pipelines.terminal.versions import versions

if TYPE_CHECKING:  # pandas is imported by the stages that need it
    from competition.images.decoded_cache import CacheBudget
    from competition.prepare.prepared import Prepared
    from competition.training.engine import Engine


TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}(\.\w+)?")  # as manifest.atomic_write names them
HOSTS_WAIT = 60.0  # seconds that a host waits for another one that does the same before they are connected
Computed = tuple[Iterable[Path], Mapping[str, object]]  # the files of a result, and facts for its manifest


@dataclass
class Computation:
    """A result within `Job.computing`."""

    is_due: bool  # it is to be computed here
    output: Computed | None = None
    manifest: Manifest = field(init=False)  # after the block


@dataclass(frozen=True)
class Job:
    """One call of one stage: the workspace, the options, and what is printed."""

    workspace: Workspace
    options: Options
    submissions: Path
    echoed: list[str] = field(default_factory=list)
    engines: "dict[str, Engine]" = field(default_factory=dict)  # kept for later stages of this process

    @property
    def params(self) -> Params:
        return self.workspace.params

    @property
    def overrides(self) -> tuple[Override, ...]:
        return self.workspace.overrides

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

    def echo_detail(self, *lines: str) -> None:
        """Print lines that only VERBOSE=1 shows."""
        if self.options.verbose:
            self.echo(*lines)

    def path(self, *parts: str) -> Path:
        return self.work.joinpath(*parts)

    def cached(
        self, name: str, manifest: Path, depends: Mapping[str, object], compute: Callable[[], Computed]
    ) -> Manifest:
        """Return the manifest of a result; compute the result first unless it is current.

        depends: whatever the result depends on, by name.
        """
        with self.computing(name, Stored(manifest, dict(depends))) as result:
            if result.is_due:
                result.output = compute()
        return result.manifest

    @contextmanager
    def computing(self, name: str, stored: Stored) -> Iterator[Computation]:
        """Hold the lock of a result that is due, and write its manifest at the end of the block, which sets `output`."""
        path, previous = stored.manifest, read_manifest(stored.manifest)
        is_done = previous is not None and not self.options.force and stored.is_current
        result = Computation(is_due=not hosts.decided(is_done))
        if not result.is_due:
            self.echo(f"{name}: current")
            result.manifest = previous or hosts.written(path)
            yield result
            return
        if not hosts.writes():
            with discarded_writes():
                yield result
            result.manifest = hosts.written(path)
            return
        if previous:
            changes = changed_keys(previous.depends, stored.depends)
            reason = "FORCE=1" if self.options.force else "; ".join(changes[:3]) or "its files were damaged"
            self.echo(f"{name}: made again ({reason}{' ...' if len(changes) > 3 else ''})")
        started = time.monotonic()
        with lock(path.with_suffix(".lock"), name) as dead:
            if dead is not None:
                self.echo(f"{name}: {dead} was killed or crashed; its complete steps are used")
            if not self.options.force and stored.is_current and not hosts.are_joined():
                self.echo(f"{name}: another process has just computed it")
                result.is_due, result.manifest = False, read_manifest(path) or hosts.written(path)
                yield result
                return
            if path.name == "manifest.json":  # other manifests share their folder
                for leftover in path.parent.glob(".*.*"):
                    if leftover.is_file() and TEMPORARY.fullmatch(leftover.name):
                        leftover.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            yield result
            assert result.output is not None, f"{name}: nothing was computed"
            files, facts = result.output
            fault_point("result.before_manifest", path)
            measured = {"seconds": round(time.monotonic() - started, 1), "peak_memory": peak_memory()}
            # A copied result keeps the time and memory of its computation.
            result.manifest = write_manifest(path, stored.depends, files, {**measured, **facts}, versions())
        fault_point("result.after_manifest", path)
        hosts.wait_for_all()


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes; 0 where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def lock(path: Path, what: str = "") -> AbstractContextManager[Holder | None]:
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
    params = job.params if hosts.writes() else replace(job.params, track=())
    return Tracked(params, job.work, subject, job.echo)


def image_cache(job: Job) -> "CacheBudget":
    """Folder and size limits of the cache of decoded images."""
    from competition.images.decoded_cache import CacheBudget

    settings = job.params.cache
    folder = Path(os.path.expanduser(settings.folder)) if settings.folder else job.path("cache")
    return CacheBudget(folder, round(settings.ram_gigabytes * 1e9), round(settings.disk_gigabytes * 1e9))


def start_backend(job: Job) -> None:
    """Select the Keras backend, print it with the reason, and start TensorFlow."""
    if choice := backend.start_backend(job.params.device.backend):
        job.echo(f"backend: {choice}")
