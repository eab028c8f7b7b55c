"""Shared by all stages: options, parameters, caching of results, messages and exit codes."""

import faulthandler
import importlib
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from competition.artifacts.earlier_layout import has_earlier_layout
from competition.artifacts.locks import Held, Holder, exclusive
from competition.artifacts.manifest import (
    Manifest,
    changed_keys,
    discarded_writes,
    is_current,
    read_manifest,
    write_manifest,
)
from competition.artifacts.replacement import finish_replacements
from competition.config.errors import UserError
from competition.config.faults import point
from competition.config.params import Member, Params, stated_keys
from competition.config.params_file import Override, load_params, parse_overrides
from competition.data.augmentations import check_augmentations
from competition.data.competition import Settings
from competition.ensemble.settings import validate_params
from competition.kaggle import credentials
from competition.kaggle.client import Client, Patience
from pipelines import hosts
from pipelines.failures import describe, require_folder
from pipelines.next_command import next_line
from pipelines.options import Options
from pipelines.output import print_line
from pipelines.progress import clear_bars
from pipelines.versions import versions

if TYPE_CHECKING:  # pandas is imported by the stages that need it
    from competition.artifacts.runs import Run
    from competition.data.cache import CacheBudget
    from competition.data.prepared import Prepared


TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}(\.\w+)?")  # as manifest.atomic_write names them
HOSTS_WAIT = 60.0  # seconds that a host waits for another one that does the same before they are connected
SUBMITTING = ("tune", "train", "predict", "blend", "submit", "kernel")  # stages whose results end in submissions/
WRITING = ("download", "prepare", "resolve", *SUBMITTING)  # stages that are pointless without a writable work/


@dataclass(frozen=True)
class Job:
    """One run of one stage: parameters, options, output folders."""

    params: Params
    overrides: tuple[Override, ...]
    options: Options
    work: Path  # work/<competition>
    submissions: Path
    echoed: list[str] = field(default_factory=list)

    @property
    def debug(self) -> bool:
        return self.options.debug

    def echo(self, *lines: str) -> None:
        self.echoed.extend(lines)
        clear_bars()
        for line in lines:
            print_line(line)

    def path(self, *parts: str) -> Path:
        return self.work.joinpath(*parts)

    @cached_property
    def prepared(self) -> "Prepared":
        """Return the prepared data with the metric of the parameters.

        Raises UserError if they are missing, or were prepared with other parameters: other folds have other fold models.
        """
        from competition.data.prepared import load_prepared

        manifest = self.require(self.path("data", "manifest.json"), "download")
        recorded = manifest.depends.get("prepare", self.params.prepare)
        if changes := changed_keys({"prepare": recorded}, {"prepare": self.params.prepare}):
            raise UserError(
                f"the data were prepared with other parameters ({'; '.join(changes[:3])}); `make download` prepares them again"
            )
        return load_prepared(self.path("data"), self.params.competition.metric, self.params.competition.predicts)

    def adapter_settings(self) -> Settings:
        """The parameters that an adapter reads."""
        prepare = self.params.prepare
        return Settings(**asdict(self.params.competition), seed=prepare.seed, group_column=prepare.group_column)

    def tuned_member(self, name: str) -> Member:
        """The member with its tuned values, if the data are prepared and a study of them is finished."""
        from competition.artifacts.studies import member_with_tuned_values

        if not self.path("data", "manifest.json").is_file():
            return self.params.members[name]
        return member_with_tuned_values(self.work, self.prepared, self.params, name, self.overrides)[0]

    def runs_of(self, name: str) -> "list[Run]":
        """The runs of a member with the current parameters, one for each of its seeds."""
        from competition.artifacts.runs import runs_of

        return runs_of(self.work, self.prepared, self.params, name, self.overrides)

    def begin_run(self, run: "Run") -> None:
        """Describe a run in its folder, with its difference from the parameter file, before its first model is trained."""
        from competition.artifacts.runs import write_run_file

        if not hosts.writes():
            return
        members = validate_params(load_params(self.options.params)).members
        stated = stated_keys(members[run.name]) if run.name in members else {}
        write_run_file(run, changed_keys(stated, run.depends["member"]))

    def require(self, manifest: Path, verb: str) -> Manifest:
        """Return the manifest of an earlier stage. Raises UserError naming the command that makes it."""
        result = read_manifest(manifest)
        if result is None:
            raise UserError(
                f"{display_path(manifest)} is missing: this stage needs the results of `make {verb}`; run it first"
            )
        return result

    def cached(
        self,
        name: str,
        manifest: Path,
        depends: Mapping[str, Any],
        compute: Callable[[], tuple[Iterable[Path], Mapping[str, Any]]],
    ) -> Manifest:
        """Return the manifest of a result; compute the result first unless it is current.

        depends: whatever the result depends on, by name.  compute: returns (files, facts for the manifest).
        """
        previous = read_manifest(manifest)
        is_done = previous is not None and not self.options.force and is_current(manifest, depends)
        if hosts.decided(is_done):
            self.echo(f"{name}: current")
            return previous or hosts.written(manifest)
        if not hosts.writes():
            with discarded_writes():
                compute()
            return hosts.written(manifest)
        if previous:
            changes = changed_keys(previous.depends, depends)
            reason = "FORCE=1" if self.options.force else "; ".join(changes[:3]) or "its files were damaged"
            self.echo(f"{name}: made again ({reason}{' ...' if len(changes) > 3 else ''})")
        started = time.monotonic()
        manifest.parent.mkdir(parents=True, exist_ok=True)
        with lock(manifest.with_suffix(".lock"), name) as dead:
            if dead is not None:
                self.echo(f"{name}: {dead} was killed or crashed; its complete steps are used")
            remove_leftovers(manifest)
            manifest.unlink(missing_ok=True)
            files, result = compute()
            point("result.before_manifest", manifest)
            measured = {"seconds": round(time.monotonic() - started, 1), "peak_memory": peak_memory()}
            written = write_manifest(manifest, depends, files, {**result, **measured}, versions())
        point("result.after_manifest", manifest)
        hosts.wait_for_all()
        return written


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes; 0 where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def lock(path: Path, what: str = "") -> Iterator[Holder | None]:
    """Hold an exclusive lock while a result is written; yield its holder that died, if there is one.

    what: what this process does.  Raises UserError naming the process that holds the lock.
    """
    try:
        with exclusive(path, what or path.stem, HOSTS_WAIT if hosts.are_expected() else 0.0) as dead:
            yield dead
    except Held as held:
        raise UserError(f"{display_path(path.parent)} is in use by {held}; wait for it, or stop it") from None


def remove_leftovers(manifest: Path) -> None:
    """Remove the temporary files that killed processes left in the folder of one result. The caller holds its lock."""
    if manifest.name == "manifest.json":  # other manifests share their folder
        for path in manifest.parent.glob(".*.*"):
            if path.is_file() and TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def kaggle_client(job: Job, tries: int = 0) -> Client:
    """Return a Kaggle client; print where its credential comes from, never the credential. tries: 0 = kaggle.tries."""
    credential, settings = credentials.find_credential(os.environ), job.params.kaggle
    job.echo(
        f"kaggle: {credential.kind} from {credential.source}"
        + (f" ({credential.username})" if credential.username else "")
    )
    job.echo(*(f"kaggle: {warning}" for warning in credential.warnings))
    patience = Patience(tries or settings.tries, settings.first_wait, settings.longest_wait, settings.stall)
    return Client(os.environ, patience, job.echo)


def bucket_of(job: Job) -> str:
    """Address of this competition's results in storage.bucket."""
    return f"{job.params.storage.bucket.rstrip('/')}/{job.params.competition.name}"


def image_cache(job: Job) -> "CacheBudget":
    """Folder and size limits of the cache of decoded images."""
    from competition.data.cache import CacheBudget

    settings = job.params.cache
    folder = Path(os.path.expanduser(settings.folder)) if settings.folder else job.path("cache")
    return CacheBudget(folder, round(settings.ram_gigabytes * 1e9), round(settings.disk_gigabytes * 1e9))


def display_path(path: Path) -> str:
    """Path relative to the current folder if it lies below it, else unchanged."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def printable(text: str) -> str:
    """Replace control characters in text from outside by "?"."""
    return "".join(character if character.isprintable() else "?" for character in text)


def submission_named(job: Job, name: str) -> Path:
    """Return the only file in submissions/ whose name starts with `name`."""
    files = sorted(job.submissions.glob("*.csv"))
    available = ", ".join(file.stem for file in files) or "none; every `make predict` writes one"
    if not name:
        raise UserError(
            f"A= and B= name two submissions by their first digits, but at least one of them is missing; available: {available}"
        )
    matches = [file for file in files if file.name.startswith(Path(name).stem)]
    if len(matches) != 1:
        raise UserError(f"{name!r} names {len(matches)} submissions, expected one; available: {available}")
    return matches[0]


def require_test_images(job: Job) -> None:
    """Raise UserError for a competition without test images, which has no submission."""
    if not len(job.prepared.part("test")):
        raise UserError(
            f"{job.params.competition.name} has no test images, so there is no submission: its result is the honest "
            "score (`make report`); to get predictions, add a folder test/ of images to competition.source and run "
            "`make download train predict`"
        )


def newest_submission(job: Job, entries: Sequence[Any]) -> Any:
    """Return the last ledger entry of this competition whose file exists and starts with --file."""
    prefix = Path(job.options.file).stem if job.options.file else ""
    candidates = [
        e for e in entries if e.competition == job.params.competition.name and Path(e.file).stem.startswith(prefix)
    ]
    existing = [e for e in candidates if (job.submissions / e.file).exists()]
    if not existing:
        condition = f" that begins with {prefix}" if prefix else ""
        raise UserError(
            f"no submission{condition} of {job.params.competition.name} is in {display_path(job.submissions)}; `make predict` writes one"
        )
    return existing[-1]


def selected_members(job: Job) -> list[str]:
    names, selected = list(job.params.members), job.options.member
    if selected and selected not in names:
        raise UserError(f"MEMBER={selected}: no such member; the members are {', '.join(names)}")
    return [selected] if selected else names


def selected_folds(job: Job) -> list[int]:
    folds, selection = job.params.prepare.folds, job.options.fold
    if not selection:
        return list(range(folds))
    numbers = [word.strip() for word in selection.split(",")]
    if not all(word.isdecimal() and int(word) < folds for word in numbers):
        raise UserError(f"FOLD={selection}: folds are whole numbers from 0 to {folds - 1}, several separated by commas")
    return sorted({int(word) for word in numbers})


def tidy(job: Job) -> None:
    """Move results of an earlier layout, and finish what a killed process left between two folders."""
    finish_replacements(job.work)
    if has_earlier_layout(job.work):
        from competition.artifacts.migration import migrate

        if sentence := migrate(job.work):
            job.echo(sentence)


def run_stage(verb: str, options: Options, is_last: bool = True) -> None:
    """Run the `run(job)` of one stage. Exits with 1 after an error, 130 after Ctrl-C and 141 if nobody reads its output.

    A UserError is printed as one sentence; any other error as one line, or as a traceback with DEBUG=1.
    is_last: no other stage follows in this process, so that the command that usually follows is printed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if options.debug else "3")
    logging.captureWarnings(True)
    faulthandler.enable(2)  # a crash in compiled code shows the Python stacks
    try:
        if not hosts.runs(verb):
            return
        stage = importlib.import_module(f"pipelines.{verb.replace('-', '_')}")
        overrides = tuple(parse_overrides(options.sets))
        params = validate_params(load_params(options.params, overrides))
        check_augmentations(name for member in params.members.values() for name in member.train.augment)
        work = options.work / params.competition.name
        require_folder(work, is_written=verb in WRITING)
        require_folder(options.submissions, is_written=verb in SUBMITTING)
        work.mkdir(parents=True, exist_ok=True)
        job = Job(params, overrides, options, work, options.submissions)
        tidy(job)
        stage.run(job)
        goals = os.environ.get("GOLDFOLD_GOALS")
        line = next_line(verb, params, options.params, work, goals, bool(options.member or options.fold), options.sets)
        if line and is_last and not options.debug:
            job.echo(line)
    except UserError as user_error:
        if options.debug:
            traceback.print_exc()
        print_line(f"goldfold: {user_error}", sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print_line("goldfold: stopped; run the same command again to continue", sys.stderr)
        sys.exit(130)
    except Exception as error:
        if options.debug:
            raise
        sentence, code = describe(error)
        print_line(f"goldfold: {sentence}", sys.stderr)
        sys.exit(code)
