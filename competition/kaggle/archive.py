"""Zip files from the network: checked whole before use, and unpacked completely or not at all.

The names, kinds and sizes of all members are checked before a byte is written. The files then go to a temporary folder
beside the target, which is renamed when all of them are whole.
"""

import os
import shutil
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from competition.artifacts.manifest import sha256
from competition.config.errors import UserError

Progress = Callable[[int, int], None]  # (done, total)
CHUNK = 1 << 20  # bytes
SMALL = 64 << 20  # bytes: below this no ratio makes an archive a bomb
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


class ArchiveRefusal(UserError):
    """reason: a predicate without the file's name, e.g. "is damaged: ..."."""

    def __init__(self, path: Path, reason: str, fix: str = "put a whole copy in its place") -> None:
        super().__init__(f"{path} {reason}; {fix}.")
        self.reason = reason


@dataclass(frozen=True)
class Verified:
    sha256: str
    files: dict[str, int]  # name -> bytes of what is to be unpacked; folders and what is left out are not in it
    notes: list[str]  # what the user should know: files that were left out or could not be compared


def verify(
    path: Path,
    listing: Mapping[str, int],
    max_ratio: float,
    progress: Progress | None = None,
    only_listed: bool = True,
) -> Verified:
    """Compare names and sizes with the listing and read every member (CRC); UserError if the archive is not as it should.

    listing: name -> bytes as the server lists them; {} = there is none.  max_ratio: unpacked to packed bytes, over the
    whole archive.  only_listed: leave out what the listing does not name (if there is a listing).
    """
    with _opened(path) as zipped:
        members = _members(path, zipped, max_ratio)
        sizes = {member.filename: member.file_size for member in members}
        absent = [name for name in listing if name not in sizes]
        wrong = [
            f"{n} ({sizes[n]} bytes, listed {listing[n]})" for n in listing if n in sizes and sizes[n] != listing[n]
        ]
        if absent or wrong:
            parts = [f"{len(absent)} listed files are not in it ({', '.join(absent[:3])})"] if absent else []
            parts += [f"{len(wrong)} files have another size: {', '.join(wrong[:3])}"] if wrong else []
            raise ArchiveRefusal(path, f"is not what the server lists: {'; '.join(parts)}")
        extra = [name for name in sizes if name not in listing]
        names = f"{', '.join(extra[:3])}{', ...' if len(extra) > 3 else ''}"
        notes = []
        if not listing:
            notes = [f"the server lists no files; the {len(extra)} of {path.name} could not be compared with a listing"]
        elif extra and only_listed:
            megabytes = sum(sizes[name] for name in extra) / 1e6
            notes = [f"{len(extra)} files ({megabytes:,.1f} MB) that the listing does not name are left out: {names}"]
            members = [member for member in members if member.filename in listing]
        elif extra:
            notes = [f"{len(extra)} files are in {path.name} and not in the listing: {names}"]
        _copy(zipped, members, None, progress)
    return Verified(sha256(path), {member.filename: member.file_size for member in members}, notes)


def extract(
    path: Path, folder: Path, max_ratio: float, progress: Progress | None = None, names: Collection[str] | None = None
) -> list[str]:
    """Unpack into `folder`, which must be empty or absent; returns the names in it. Whole or not at all.

    names: unpack these alone; None = all.
    A temporary folder left by a killed run is removed first. Two runs at once: the caller holds a lock.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder: remove or rename it, then unpack {path.name} again.")
    temporary = folder.parent / f".{folder.name}.unpacking"
    with _opened(path) as zipped:
        members = [m for m in _members(path, zipped, max_ratio) if names is None or m.filename in names]
        total = sum(member.file_size for member in members)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        if total > (free := shutil.disk_usage(folder.parent).free):
            left = f"{folder.parent} has {_megabytes(free)} left"
            raise UserError(f"{path} unpacks to {_megabytes(total)}, {left}: free the difference.")
        try:
            temporary.mkdir()
            _copy(zipped, members, temporary, progress)
            os.sync()  # once for all: a flush for each of 16,000 images would take minutes
            temporary.replace(folder)
        except OSError as error:
            raise UserError(
                f"{path} could not be unpacked into {folder.parent} ({error.strerror or error}): "
                f"{_megabytes(total)} are needed there; the archive is kept."
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return [member.filename for member in members]


def describe(path: Path) -> str:
    """What a file that should be a zip really is, in a few words."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(512).lstrip().lower()
    if not head:
        return f"it holds {size} bytes and no data"
    if head.startswith((b"<!doctype", b"<html", b"<?xml", b"<error")):
        return f"it holds a web page ({size} bytes), sent where a login, the rules or a fresh link is needed"
    if head.startswith((b"{", b"[")):
        return f"it holds JSON ({size} bytes), probably an error message of the server"
    if head.startswith(b"pk\x03\x04"):
        return f"its end is missing ({size} bytes are here)"
    return f"{size} bytes that are no zip"


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        zipped = zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise ArchiveRefusal(path, "is missing: expected a zip file") from error
    except (*UNREADABLE, OSError, ValueError) as error:
        raise ArchiveRefusal(path, f"is no zip file: {describe(path)}") from error
    with zipped:
        yield zipped


def _copy(
    zipped: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path | None, progress: Progress | None
) -> None:
    """Read every member to its end, where zipfile compares the CRC, and write it below `folder`, if there is one."""
    done, total = 0, sum(member.file_size for member in members)
    for member in members:
        target = folder.joinpath(*member.filename.split("/")) if folder else Path(os.devnull)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with zipped.open(member) as source, target.open("xb" if folder else "wb") as sink:
                while chunk := source.read(CHUNK):
                    sink.write(chunk)
                    done += len(chunk)
                    if progress:
                        progress(done, total)
        except UNREADABLE as error:
            name, reason = member.filename, "does not match its checksum or cannot be unpacked"
            raise ArchiveRefusal(Path(str(zipped.filename)), f"is damaged: {name!r} {reason}") from error


def _members(path: Path, zipped: zipfile.ZipFile, max_ratio: float) -> list[zipfile.ZipInfo]:
    """The files in it (folders left out); UserError if one name, kind or size is not what honest archives have."""
    found = zipped.infolist()
    files = [member for member in found if not member.is_dir()]
    problems = [problem for member in found if (problem := _problem(member))]
    problems += _collisions([member.filename for member in files])
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ArchiveRefusal(path, f"is refused, nothing was unpacked: {'; '.join(problems[:3])}{more}")
    unpacked, packed = sum(member.file_size for member in files), max(1, path.stat().st_size)
    if unpacked > SMALL and unpacked / packed > max_ratio:
        times = f"{unpacked / packed:.0f} times as much (at most {max_ratio:g} times is allowed)"
        sizes = f"{_megabytes(packed)} would unpack to {_megabytes(unpacked)}"
        raise ArchiveRefusal(path, f"is refused as a zip bomb: {sizes}, {times}")
    return files


def _problem(member: zipfile.ZipInfo) -> str | None:
    name = member.orig_filename  # `filename` is cut at a NUL
    shown, parts = ascii(name[:80]), name.rstrip("/").split("/")
    if not name.strip("/ ") or any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in name):
        return f"odd name {shown}"
    if "\\" in name or name.startswith("/") or name[1:2] == ":":
        return f"absolute or foreign path {shown}"
    if any(part in {"", ".", ".."} for part in parts):
        return f"path that leaves the folder or is not plain {shown}"
    if any(len(part.encode()) > 255 for part in parts) or len(name.encode()) > 2048:
        return f"name too long {shown}"
    if stat.S_IFMT(member.external_attr >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}:
        return f"link or special file {shown}"
    return f"encrypted file {shown}" if member.flag_bits & 0x1 else None


def _collisions(names: list[str]) -> list[str]:
    """Names that are one file on some disk (case, Unicode form), and files that other names use as a folder."""
    problems: list[str] = []
    seen: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:
            problems.append(f"one name twice {seen[key][:80]!a}, {name[:80]!a}")
        seen[key] = name
    folders = {str(parent) for key in seen for parent in PurePosixPath(key).parents}
    return problems + [f"a file that is a folder too {seen[key][:80]!a}" for key in seen if key in folders]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
