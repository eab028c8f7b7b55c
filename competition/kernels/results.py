"""Download the results of a kernel, verify their checksums and copy them to their places in the local results."""

import fnmatch
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from competition.config.errors import UserError
from competition.files.manifest import files_intact, intact_manifest, read_manifest, sha256
from competition.kaggle import archive
from competition.kaggle.client import Client, ask, kernel_fields
from competition.kernels import kernel_script
from competition.kernels.api import KernelVersion


@dataclass(frozen=True)
class Archive:
    """A packed result folder, see kernel_script.write_archive."""

    result_folder: str  # path relative to the project's root
    file: str
    sha256: str


@dataclass(frozen=True)
class Output:
    """What a kernel says of its output, see kernel_script.main."""

    run: str
    status: str  # "done"; "cut" = stopped at the time limit, another kernel can resume; "failed"
    problem: str
    devices: str
    seconds: float
    archives: tuple[Archive, ...]
    folder: Path = Path()  # where it was downloaded to


# What was done with a result folder: imported complete, unfinished (checkpoints), or a complete local result was kept.
Action = Literal["imported", "unfinished", "kept"]


def pull(client: Client, pushed: KernelVersion, run: str, folder: Path) -> Output:
    """Download the outputs of `run`, verify every checksum, and replace `folder` by them."""
    name = f"{pushed.owner}/{pushed.slug}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder.parent) as temporary:
        download = Path(temporary) / "output"
        download.mkdir()
        ask(client, "kernel_output", {"kernel": kernel_fields(name, pushed.version), "folder": str(download)}, name)
        output = read_output(download, run, name)
        shutil.rmtree(folder, ignore_errors=True)
        download.replace(folder)
    return replace(output, folder=folder)


def read_output(folder: Path, run: str, name: str) -> Output:
    """Read and verify an output folder; UserError if it belongs to another run or is incomplete."""
    listing = folder / kernel_script.OUTPUT
    try:
        output = TypeAdapter(Output).validate_json(listing.read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            f"{name} left no {kernel_script.OUTPUT}: it ended before it could pack; `make kernel-log` shows why, "
            "`make kernel AGAIN=1` pushes what is still missing"
        ) from error
    except (OSError, ValidationError) as error:
        raise UserError(f"{listing} of {name} is damaged: `make kernel` fetches it again") from error
    if output.run != run:
        raise UserError(
            f"the output of {name} is of run {output.run}, not of {run}: another version; `make kernel` fetches it again, "
            "later if Kaggle still shows the older one"
        )
    for packed in output.archives:
        path = folder / packed.file
        if PurePosixPath(packed.file).name != packed.file or not path.is_file() or sha256(path) != packed.sha256:
            raise UserError(f"{packed.result_folder} of {name} is missing or damaged: `make kernel` fetches it again")
    return replace(output, folder=folder)


def merge(output: Output, into: Path, allowed: Sequence[str]) -> dict[Action, list[str]]:
    """Copy each result folder to its path below `into`; return the folders by what was done with them.

    A complete local result is never replaced.

    allowed: patterns of the accepted folders, relative to `into` (the plan's `collect`).
    """
    result_folders: dict[Action, list[str]] = {"imported": [], "unfinished": [], "kept": []}
    for packed in output.archives:
        name = packed.result_folder
        # As Path.glob matches: a star does not match a slash.
        of_same_depth = [pattern for pattern in allowed if name.count("/") == pattern.count("/")]
        if ".." in PurePosixPath(name).parts or not any(fnmatch.fnmatch(name, pattern) for pattern in of_same_depth):
            raise UserError(f"unexpected result {name!r} in the output: expected {', '.join(allowed)}.")
        result_folders[install(output.folder / packed.file, into / name)].append(name)
    return result_folders


def install(packed: Path, target: Path) -> Action:
    """Unpack a result folder to `target`, at once or not at all. A complete local result is never replaced: "kept".

    What lies below it and is missing here, such as predictions of a fold model that was trained in an earlier session, is added.
    Raises UserError if the archive is unsafe or does not match its manifest.
    """
    unpacked = target.with_name(f".{target.name}.merging")
    shutil.rmtree(unpacked, ignore_errors=True)
    archive.extract(packed, unpacked)
    manifest, local = read_manifest(unpacked / "manifest.json"), intact_manifest(target / "manifest.json")
    if manifest is not None and not files_intact(unpacked / "manifest.json", manifest):
        shutil.rmtree(unpacked)
        raise UserError(f"{'/'.join(target.parts[-4:])} does not match its manifest: compute it again.")
    if local is not None:
        is_same = manifest is not None and (manifest.digest, manifest.files) == (local.digest, local.files)
        complete = [path for path in unpacked.glob("*/*/manifest.json") if is_same and intact_manifest(path)]
        added = [path.parent for path in complete if not intact_manifest(target / path.relative_to(unpacked))]
        for folder in added:
            shutil.rmtree(place := target / folder.relative_to(unpacked), ignore_errors=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            folder.replace(place)
        shutil.rmtree(unpacked)
        return "imported" if added else "kept"
    shutil.rmtree(target, ignore_errors=True)
    unpacked.replace(target)
    return "imported" if manifest is not None else "unfinished"
