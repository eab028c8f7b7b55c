"""What all stages share: the command line, the parameters, "is it current?", messages and exit codes."""

import importlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import Manifest, changed_keys, is_current, read_manifest, write_manifest
from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.params_file import Override, load_params, parse_overrides
from competition.data.cache import CacheBudget
from competition.ensemble.settings import validate_params
from competition.kaggle import credentials
from competition.kaggle.client import Client, Patience
from pipelines.versions import ROOT, versions


@dataclass(frozen=True)
class Options:
    """The command line of one stage. The help of each option is in pipelines/cli.py; "" = not given."""

    params: Path = ROOT / "params.yaml"
    sets: str = ""  # --set: overrides of parameters
    work: Path = ROOT / "work"
    submissions: Path = ROOT / "submissions"
    force: bool = False
    debug: bool = False
    member: str = ""
    fold: str = ""
    allow_partial: bool = False
    debug_rows: int = 256
    a: str = ""
    b: str = ""
    file: str = ""
    again: bool = False
    only: str = ""
    like: str = ""
    explain: str = ""
    topology: str = ""
    mode: str = "compile"
    backend: str = ""
    step: str = ""
    search: bool = False
    most: int = 4096  # images
    classes: int = 0
    limit: float = 3600.0  # seconds
    if_tpu: bool = False
    log: bool = False
    inline: int = 350_000  # bytes; a larger index does not fit into the kernel's one file and is sent as a dataset
    top: int = 20
    seeds: int = 3


@dataclass(frozen=True)
class Job:
    """One run of one stage: the parameters, where results go, what was asked for on the command line."""

    params: Params
    overrides: tuple[Override, ...]
    options: Options
    work: Path  # work/<competition>
    submissions: Path
    echoed: list[str] = field(default_factory=list)

    @property
    def debug(self) -> bool:
        return self.options.debug

    def echo(self, line: str) -> None:
        self.echoed.append(line)
        print(line, flush=True)

    def path(self, *parts: str) -> Path:
        return self.work.joinpath(*parts)

    def require(self, manifest: Path, verb: str) -> Manifest:
        """The manifest of an earlier stage, or a user_error that names the command to run."""
        made = read_manifest(manifest)
        if made is None:
            raise UserError(
                f"{display_path(manifest)} is missing: this stage needs what `make {verb}` makes; run it first"
            )
        return made

    def cached(
        self,
        name: str,
        manifest: Path,
        depends: Mapping[str, Any],
        make: Callable[[], tuple[Iterable[Path], Mapping[str, Any]]],
    ) -> Manifest:
        """The result sealed by `manifest`: as it is when it is current, made now when it is not."""
        made = read_manifest(manifest)
        if made and not self.options.force and is_current(manifest, depends):
            self.echo(f"{name}: current")
            return made
        if made:
            changes = changed_keys(made.depends, depends)
            why = "FORCE=1" if self.options.force else "; ".join(changes[:3]) or "its files were damaged"
            self.echo(f"{name}: made again ({why}{' ...' if len(changes) > 3 else ''})")
        started = time.monotonic()
        manifest.parent.mkdir(parents=True, exist_ok=True)
        with lock(manifest.with_suffix(".lock")):
            manifest.unlink(missing_ok=True)
            files, result = make()
            return write_manifest(
                manifest, depends, files, {**result, "seconds": round(time.monotonic() - started, 1)}, versions()
            )


@contextmanager
def lock(path: Path) -> Any:
    """Two processes never make the same result; the lock of a dead process holds nobody up."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout:
        raise UserError(f"{display_path(path.parent)} is in use by another run; wait for it, or stop it") from None


def kaggle_client(job: Job, tries: int = 0) -> Client:
    """Kaggle by the credential of this machine, said (where from, never what). tries: 0 = as params say."""
    found, how = credentials.find(os.environ), job.params.kaggle
    job.echo(f"kaggle: {found.kind} from {found.source}" + (f" ({found.username})" if found.username else ""))
    for warning in found.warnings:
        job.echo(f"kaggle: {warning}")
    patience = Patience(tries or how.tries, how.first_wait, how.longest_wait, how.stall)
    return Client(os.environ, patience, job.echo)


def bucket_of(job: Job) -> str:
    """Where this competition's results are in storage.bucket."""
    return f"{job.params.storage.bucket.rstrip('/')}/{job.params.competition.name}"


def image_cache(job: Job) -> CacheBudget:
    """Where decoded images are kept, and how many bytes of them."""
    wanted = job.params.cache
    folder = Path(wanted.folder).expanduser() if wanted.folder else job.path("cache")
    return CacheBudget(folder, round(wanted.ram_gigabytes * 1e9), round(wanted.disk_gigabytes * 1e9))


def display_path(path: Path) -> str:
    """A path as a person would type it here."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def printable(text: str) -> str:
    """Somebody else's text as a terminal can show it: control characters replaced."""
    return "".join(character if character.isprintable() else "?" for character in text)


def submission_named(job: Job, name: str) -> Path:
    """The one file in submissions/ that begins with `name`."""
    files = sorted(job.submissions.glob("*.csv"))
    known = ", ".join(file.stem for file in files) or "none; every `make predict` writes one"
    if not name:
        raise UserError(
            f"A= and B= name two submissions by their first digits, and at least one of them was not given; there are {known}"
        )
    found = [file for file in files if file.name.startswith(Path(name).stem)]
    if len(found) != 1:
        raise UserError(f"{name!r} names {len(found)} submissions where one was expected; there are {known}")
    return found[0]


def newest_submission(job: Job, entries: Sequence[Any]) -> Any:
    """The last ledger entry of this competition whose file is there, or the one named by --file."""
    named = Path(job.options.file).stem if job.options.file else ""
    mine = [e for e in entries if e.competition == job.params.competition.name and Path(e.file).stem.startswith(named)]
    there = [e for e in mine if (job.submissions / e.file).exists()]
    if not there:
        which = f" that begins with {named}" if named else ""
        raise UserError(
            f"no submission{which} of {job.params.competition.name} is in {display_path(job.submissions)}; `make predict` writes one"
        )
    return there[-1]


def selected_members(job: Job) -> list[str]:
    names, wanted = list(job.params.members), job.options.member
    if wanted and wanted not in names:
        raise UserError(f"MEMBER={wanted}: there is no such member; params names {', '.join(names)}")
    return [wanted] if wanted else names


def selected_folds(job: Job) -> list[int]:
    folds, wanted = job.params.prepare.folds, job.options.fold
    if not wanted:
        return list(range(folds))
    numbers = [word.strip() for word in wanted.split(",")]
    if not all(word.isdecimal() and int(word) < folds for word in numbers):
        raise UserError(f"FOLD={wanted}: folds are whole numbers from 0 to {folds - 1}, several with commas between")
    return sorted({int(word) for word in numbers})


def run_stage(module: str, options: Options) -> None:
    """Run the `run(job)` of one stage. Exits with 1 after an error and 130 after Ctrl-C.

    A UserError is printed as one sentence; any other error as one line, or as a traceback with DEBUG=1.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if options.debug else "3")
    logging.captureWarnings(True)
    try:
        stage = importlib.import_module(module)
        overrides = tuple(parse_overrides(options.sets))
        params = validate_params(load_params(options.params, overrides))
        work = options.work / params.competition.name
        work.mkdir(parents=True, exist_ok=True)
        stage.run(Job(params, overrides, options, work, options.submissions))
    except UserError as user_error:
        if options.debug:
            traceback.print_exc()
        print(f"goldfold: {user_error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("goldfold: stopped; run the same command again to continue", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if options.debug:
            raise
        line = " ".join(str(error).split())
        print(
            f"goldfold: {type(error).__name__}: {line}\nUnexpected error; DEBUG=1 shows the traceback.", file=sys.stderr
        )
        sys.exit(1)
