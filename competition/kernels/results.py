"""What a kernel left: every checksum looked at, and each result put where it would be had it been made here."""

import fnmatch
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from competition.artifacts.manifest import files_intact, read_manifest, sha256
from competition.config.errors import UserError
from competition.kaggle import archive
from competition.kaggle.client import Client, ask
from competition.kernels import kernel_script
from competition.kernels.api import KernelVersion


@dataclass(frozen=True)
class Output:
    """What a kernel left, verified."""

    folder: Path
    status: str  # done, cut (time was over; run it again to go on), failed
    problem: str
    devices: str
    seconds: float
    units: tuple[str, ...]


@dataclass(frozen=True)
class Merged:
    taken: tuple[str, ...]  # whole results that are here now
    partial: tuple[str, ...]  # unfinished ones (checkpoints) that are here now
    kept: tuple[str, ...]  # what was here already, and whole


def pull(client: Client, pushed: KernelVersion, run: str, folder: Path) -> Output:
    """The outputs of this very run into `folder`, which they replace as a whole, every checksum verified."""
    name = f"{pushed.owner}/{pushed.slug}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder.parent) as temporary:
        came = Path(temporary) / "output"
        came.mkdir()
        where = {"owner": pushed.owner, "slug": pushed.slug, "version": pushed.version, "folder": str(came)}
        ask(client, "kernel_output", where, name)
        output = read_output(came, run, name)
        shutil.rmtree(folder, ignore_errors=True)
        came.replace(folder)
    return Output(folder, output.status, output.problem, output.devices, output.seconds, output.units)


def read_output(folder: Path, run: str, name: str) -> Output:
    """What a pulled (or hand-downloaded) output folder holds; UserError when it is of another run, or not whole."""
    listing = folder / kernel_script.OUTPUT
    try:
        told = json.loads(listing.read_text(encoding="utf-8"))
        units = {unit["unit"]: (unit["file"], unit["sha256"]) for unit in told["units"]}
        output = Output(
            folder, told["status"], told["problem"], told["devices"], float(told["seconds"]), tuple(sorted(units))
        )
        other = told["run"] if run and told["run"] != run else ""
    except FileNotFoundError as error:
        raise UserError(
            f"{name} left no {kernel_script.OUTPUT}: it ended before it could pack; `make kernel-log` shows why, "
            "`make kernel AGAIN=1` pushes what is still missing"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{listing} of {name} is damaged: `make kernel` fetches it again") from error
    if other:
        raise UserError(
            f"the output of {name} is of run {other}, not of {run}: another version; `make kernel` fetches it again, "
            "later if Kaggle still shows the older one"
        )
    for unit, (file, digest) in units.items():
        path = folder / PurePosixPath(file).name
        if not path.is_file() or sha256(path) != digest:
            raise UserError(f"{unit} in the output of {name} is missing or damaged: `make kernel` fetches it again")
    return output


def merge(output: Output, into: Path, allowed: Sequence[str], max_ratio: float) -> Merged:
    """Put each result folder where it would be had it been made here.

    allowed: patterns of the folders that may come, relative to `into` (the plan's `collect`).
    A result that is whole here already stays; one that came without its manifest (a checkpoint) never replaces one.
    """
    told = json.loads((output.folder / kernel_script.OUTPUT).read_text(encoding="utf-8"))
    taken: list[str] = []
    partial: list[str] = []
    kept: list[str] = []
    for unit in told["units"]:
        name = str(unit["unit"])
        if ".." in PurePosixPath(name).parts or not any(_matches(name, pattern) for pattern in allowed):
            raise UserError(f"the output holds {name!r}, which was not asked for: expected {', '.join(allowed)}.")
        target = into / name
        here = read_manifest(target / "manifest.json")
        if here is not None and files_intact(target / "manifest.json", here):
            kept.append(name)
            continue
        came = target.with_name(f".{target.name}.merging")
        shutil.rmtree(came, ignore_errors=True)
        archive.extract(output.folder / unit["file"], came, max_ratio)
        made = read_manifest(came / "manifest.json")
        if made is not None and not files_intact(came / "manifest.json", made):
            shutil.rmtree(came)
            raise UserError(f"{name} from the kernel is not what its manifest says: train it again.")
        shutil.rmtree(target, ignore_errors=True)
        came.replace(target)
        (taken if made is not None else partial).append(name)
    return Merged(tuple(taken), tuple(partial), tuple(kept))


def _matches(name: str, pattern: str) -> bool:
    """As Path.glob would: a star does not reach over a slash."""
    return name.count("/") == pattern.count("/") and fnmatch.fnmatch(name, pattern)
