"""Verify and unpack zip files from the network. An archive is unpacked completely or not at all.

Names, types and sizes of all members are checked before a byte is written. The files are written to a temporary folder
beside the target, which is renamed when all of them are complete.
"""

import os
import shutil
import stat
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich import filesize

from competition.config.errors import UserError, counted
from competition.config.faults import fault_point
from competition.config.redaction import hide
from competition.files.manifest import sha256
from competition.kaggle.answers import is_safe_path
from competition.kaggle.errors import KaggleError

Progress = Callable[[int, int], None]  # (done, total)
CHUNK = 1 << 20  # bytes
SMALL = 64 << 20  # bytes: a smaller archive is not a zip bomb, whatever its ratio


class ArchiveRefusal(UserError):
    """reason: a predicate without the file's name, e.g. "is damaged: ..."."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}; replace it by a complete copy.")
        self.reason = reason


class NamesCredential(UserError):
    """A name in the archive holds the credential that it was downloaded with: the server echoes what it receives."""


@dataclass(frozen=True)
class UnpackRules:
    """What is accepted of an archive."""

    max_ratio: float  # unpacked to packed bytes of the archive
    unlisted: bool = False  # also unpack files that are missing from the server's listing
    case_twins: bool = False  # also unpack names that differ in letter case or Unicode form only
    secrets: tuple[str, ...] = field(default=(), repr=False)  # that no name may hold, in any form


@dataclass(frozen=True)
class Verified:
    sha256: str
    files: dict[str, int]  # name -> bytes of the files to unpack
    notes: list[str]  # for the user: files that are left out or could not be compared


def extract_verified(
    path: Path,
    folder: Path,
    rules: UnpackRules,
    listing: Mapping[str, int | None],
    progress: Progress = lambda done, total: None,
) -> Verified:
    """Unpack as `extract` does, after a comparison of names and sizes with the listing; raise ArchiveRefusal on a difference.

    listing: name -> bytes as listed by the server, None = unknown; {} = there is no listing.
    """
    with _open(path) as zipped:
        sizes = {member.filename: member.file_size for member in _members(path, zipped, rules)}
        absent = [name for name in listing if name not in sizes]
        if absent:
            raise ArchiveRefusal(path, f"lacks {counted(len(absent), 'listed file')}: {', '.join(absent[:3])}")
        wrong = [
            f"{n} ({sizes[n]} bytes, listed {size})" for n, size in listing.items() if size not in (None, sizes.get(n))
        ]
        if wrong:
            raise ArchiveRefusal(path, f"has {counted(len(wrong), 'file')} of another size: {', '.join(wrong[:3])}")
        unlisted = [name for name in sizes if name not in listing]
        notes = []
        if not listing:
            notes = [f"the server lists no files; the {len(sizes)} of {path.name} could not be compared with a listing"]
        elif unlisted:
            size = filesize.decimal(sum(sizes[name] for name in unlisted))
            action = "unpacked as well" if rules.unlisted else "left out"
            names = f"{', '.join(unlisted[:3])}{', ...' if len(unlisted) > 3 else ''}"
            notes = [f"{counted(len(unlisted), 'file')} not in the listing ({size}), {action}: {names}"]
            sizes = {name: size for name, size in sizes.items() if name in listing or rules.unlisted}
        _unpack(path, zipped, sizes, folder, progress)
    return Verified(sha256(path), sizes, notes)


def extract(
    path: Path,
    folder: Path,
    rules: UnpackRules,
    progress: Progress = lambda done, total: None,
    names: Collection[str] | None = None,
) -> list[str]:
    """Unpack into `folder`, which must be empty or absent; return the names of the files.

    names: of the files to unpack; None = all.
    Removes the temporary folder of a killed run first. The caller holds a lock against a second run.
    """
    with _open(path) as zipped:
        members = _members(path, zipped, rules)
        sizes = {m.filename: m.file_size for m in members if names is None or m.filename in names}
        _unpack(path, zipped, sizes, folder, progress)
    return list(sizes)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise ArchiveRefusal(path, "is missing: expected a zip file") from error
    except Exception as error:  # damaged bytes may cause any exception in zipfile
        with path.open("rb") as file:
            head = file.read(512).lstrip().lower()
        kinds = {
            b"pk\x03\x04": "its end is missing",
            b"{": "it is JSON, probably an error message",
            b"<": "it is a web page",
        }
        kind = next((text for start, text in kinds.items() if head.startswith(start)), "unknown content")
        raise ArchiveRefusal(path, f"is not a zip file: {kind} ({path.stat().st_size} bytes)") from error


def _unpack(path: Path, zipped: zipfile.ZipFile, sizes: Mapping[str, int], folder: Path, progress: Progress) -> None:
    """Write the files to a temporary folder and rename it to `folder`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder: remove or rename it, then unpack {path.name} again.")
    temporary = folder.parent / f".{folder.name}.unpacking"
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    needed = sum(sizes.values())
    require_disk_space(str(path), needed, folder.parent)
    try:
        for name in ("", *_folders(sizes)):
            Path(f"{temporary}/{name}").mkdir(parents=True, exist_ok=True)
        done = 0
        for name in sizes:
            # A string, and no call of the disk but those that write: pathlib takes longer than the file at 100,000 small files.
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


def require_disk_space(purpose: str, needed: int, folder: Path) -> None:
    """KaggleError if fewer than `needed` bytes are free in `folder`."""
    if (missing := needed - shutil.disk_usage(folder).free) > 0:
        sentence = f"{purpose} needs {filesize.decimal(missing)} more than are free in {folder}: free disk space first."
        raise KaggleError("disk", sentence)


def _chunks(path: Path, zipped: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """The content of a file, read to its end, where zipfile compares the CRC."""
    try:
        with zipped.open(name) as source:
            while chunk := source.read(CHUNK):
                yield chunk
    except Exception as error:  # damaged bytes may cause any exception in zipfile and its decompressors
        reason = f"is damaged: {name!r} does not match its checksum or cannot be unpacked"
        raise ArchiveRefusal(path, reason) from error


def _members(path: Path, zipped: zipfile.ZipFile, rules: UnpackRules) -> list[zipfile.ZipInfo]:
    """Files of the archive, without folders; raise ArchiveRefusal if a name, type or size is unsafe."""
    # Not is_dir(), which fails on an empty name.
    files = [member for member in zipped.infolist() if not member.filename.endswith("/")]
    problems = [problem for member in zipped.infolist() if (problem := _problem(member))]
    names = [member.filename for member in files]
    text = "\n".join(member.orig_filename for member in zipped.infolist())
    if rules.secrets and hide(text, rules.secrets) != text:
        raise NamesCredential(
            f"{path} is refused: a file in it is named after your Kaggle credential, so the server echoes it; nothing was "
            "unpacked, make a new token."
        )
    counts = Counter(names)
    folders = _folders(names)
    problems += [f"duplicate name {name[:80]!a}" for name, count in counts.items() if count > 1]
    problems += [f"both file and folder {name[:80]!a}" for name in counts if name in folders]
    first: dict[str, str] = {}  # name without letter case and Unicode form -> the first path with this name
    keys = [(unicodedata.normalize("NFC", path).casefold(), path) for path in (*names, *folders)]
    twins = [(other, path) for key, path in keys if (other := first.setdefault(key, path)) != path]
    if twins and not problems and not rules.case_twins:
        raise UserError(
            f"{path} has {counted(len(twins), 'pair')} of names that some file systems take for one, e.g. {' and '.join(twins[0])}; "
            'SET="kaggle.case_twins=keep" unpacks both, on a disk that tells them apart (Linux).'
        )
    if problems:
        raise ArchiveRefusal(path, f"has {counted(len(problems), 'unsafe member')}: {'; '.join(problems[:3])}")
    unpacked, packed = sum(member.file_size for member in files), max(1, path.stat().st_size)
    if unpacked > SMALL and unpacked / packed > rules.max_ratio:
        sizes = f"{filesize.decimal(packed)} would unpack to {filesize.decimal(unpacked)}, {unpacked / packed:.0f} times as much"
        raise ArchiveRefusal(path, f"is refused as a zip bomb: {sizes} (at most {rules.max_ratio:g} times is allowed)")
    return files


def _problem(member: zipfile.ZipInfo) -> str | None:
    name = member.orig_filename  # zipfile cuts `filename` at a NUL
    if not is_safe_path(name.rstrip("/")):
        return f"unsafe path {name[:80]!a}"
    if max(len(part.encode()) for part in name.split("/")) > 255 or len(name.encode()) > 2048:
        return f"name too long {name[:80]!a}"
    special = stat.S_IFMT(member.external_attr >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}
    return f"link, special or encrypted file {name[:80]!a}" if special or member.flag_bits & 0x1 else None


def _folders(names: Iterable[str]) -> dict[str, None]:
    """The folders that hold the files, and the folders above them, each once, as the keys."""
    folders: dict[str, None] = {}
    for name in names:
        folder = name.rpartition("/")[0]
        while folder and folder not in folders:
            folders[folder] = None
            folder = folder.rpartition("/")[0]
    return folders
