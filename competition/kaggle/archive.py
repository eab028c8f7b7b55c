"""Verify and unpack zip files from the network. An archive is unpacked completely or not at all.

Names and types of all members are checked before a byte is written. The files are written to a temporary folder
beside the target, which is renamed when all of them are complete.
"""

import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich import filesize

from competition.config.errors import UserError, counted
from competition.config.faults import fault_point
from competition.config.redaction import hide
from competition.kaggle.answers import is_safe_path
from competition.kaggle.errors import KaggleError

Progress = Callable[[int, int], None]  # (done, total)
CHUNK = 1 << 20  # bytes


class ArchiveRefusal(UserError):
    """reason: a predicate without the file's name, e.g. "is damaged: ..."."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}; replace it by a complete copy.")
        self.reason = reason


class NamesCredential(UserError):
    """A name in the archive holds the credential that it was downloaded with: the server echoes what it receives."""


def extract(
    path: Path, folder: Path, secrets: Sequence[str] = (), progress: Progress = lambda done, total: None
) -> None:
    """Unpack into `folder`, which must be empty or absent.

    secrets: that no name may hold, in any form.
    Removes the temporary folder of a killed run first. The caller holds a lock against a second run.
    """
    with _open(path) as zipped:
        members = zipped.infolist()
        text = "\n".join(member.orig_filename for member in members)
        if secrets and hide(text, secrets) != text:
            raise NamesCredential(
                f"{path} is refused: a file in it is named after your Kaggle credential, so the server echoes it; nothing was "
                "unpacked, make a new token."
            )
        if problems := [problem for member in members if (problem := _problem(member))]:
            raise ArchiveRefusal(path, f"has {counted(len(problems), 'unsafe member')}: {'; '.join(problems[:3])}")
        # Not is_dir(), which fails on an empty name.
        sizes = {member.filename: member.file_size for member in members if not member.filename.endswith("/")}
        _unpack(path, zipped, sizes, folder, progress)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise ArchiveRefusal(path, "is missing: expected a zip file") from error
    except Exception as error:  # damaged bytes may cause any exception in zipfile
        with path.open("rb") as file:
            head, size = file.read(12), path.stat().st_size
        raise ArchiveRefusal(path, f"is no whole zip file: its {size} bytes begin with {head!r}") from error


def _unpack(path: Path, zipped: zipfile.ZipFile, sizes: Mapping[str, int], folder: Path, progress: Progress) -> None:
    """Write the files to a temporary folder and rename it to `folder`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder: remove or rename it, then unpack {path.name} again.")
    temporary = folder.parent / f".{folder.name}.unpacking"
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    needed = sum(sizes.values())
    if (missing := needed - shutil.disk_usage(folder.parent).free) > 0:
        lacking = f"{filesize.decimal(missing)} more than are free in {folder.parent}"
        raise KaggleError("disk", f"{path} needs {lacking}: free disk space first.")
    try:
        for name in {"", *(name.rpartition("/")[0] for name in sizes)}:
            Path(f"{temporary}/{name}").mkdir(parents=True, exist_ok=True)
        done = 0
        for name in sizes:
            # A string, and no call of the disk but those that write: pathlib takes longer than the file at 100,000 small files.
            # "x" refuses a name that this file system takes for an earlier one (another letter case on macOS).
            with open(f"{temporary}/{name}", "xb") as sink:  # noqa: PTH123
                for chunk in _chunks(path, zipped, name):
                    sink.write(chunk)
                    done += len(chunk)
                    progress(done, needed)
        os.sync()  # once for all files: an fsync of each of 16,000 images would take minutes
        fault_point("unpack.before_rename", folder)
        temporary.replace(folder)
    except OSError as error:
        raise UserError(
            f"{path} could not be unpacked into {folder.parent} ({error.strerror or error}): "
            f"it needs {filesize.decimal(needed)} there; the archive is kept."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _chunks(path: Path, zipped: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """The content of a file, read to its end, where zipfile compares the CRC."""
    try:
        with zipped.open(name) as source:
            while chunk := source.read(CHUNK):
                yield chunk
    except Exception as error:  # damaged bytes may cause any exception in zipfile and its decompressors
        reason = f"is damaged: {name!r} does not match its checksum or cannot be unpacked"
        raise ArchiveRefusal(path, reason) from error


def _problem(member: zipfile.ZipInfo) -> str | None:
    name = member.orig_filename  # zipfile cuts `filename` at a NUL
    if not is_safe_path(name.rstrip("/")):
        return f"unsafe path {name[:80]!a}"
    special = stat.S_IFMT(member.external_attr >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}
    return f"link, special or encrypted file {name[:80]!a}" if special or member.flag_bits & 0x1 else None
