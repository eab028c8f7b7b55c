"""Zip files from the network: verified before they are believed, unpacked so that nothing lands where it should not.

Everything is judged from the archive's directory before a byte is written; the files then go to a temporary folder
beside the wanted one, which is renamed when the last of them is whole.
"""

import os
import shutil
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from competition.errors import Refusal
from competition.manifest import sha256

Progress = Callable[[int, int], None]  # (done, total)
CHUNK = 1 << 20  # bytes
SMALL = 64 << 20  # bytes: below this no ratio makes an archive a bomb


@dataclass(frozen=True)
class Verified:
    sha256: str
    files: dict[str, int]  # name -> bytes, folders left out
    notes: list[str]  # what a person should know: names the listing does not have


def verify(archive: Path, listing: Mapping[str, int], max_ratio: float, progress: Progress | None = None) -> Verified:
    """Read every member (CRC), compare names and sizes with the listing; Refusal where the archive cannot be trusted.

    listing: name -> bytes as the server lists them; {} when there is none. Listings are known to be short, so a name
    that only the archive has is noted; a name that only the listing has, or another size, is refused.
    max_ratio: unpacked to packed bytes, over the whole archive.
    """
    with _open(archive) as zipped:
        members = _judge(archive, zipped, max_ratio)
        files = {member.filename: member.file_size for member in members}
        notes = _compare(archive, files, listing)
        done, total = 0, sum(files.values())
        for member in members:
            try:
                with zipped.open(member) as source:
                    while chunk := source.read(CHUNK):
                        done += len(chunk)
                        if progress:
                            progress(done, total)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise Refusal(_damaged(archive, member.filename)) from error
    return Verified(sha256(archive), files, notes)


def extract(archive: Path, folder: Path, max_ratio: float, progress: Progress | None = None) -> list[str]:
    """Unpack into `folder`, which must be empty or absent; returns the names in it. Whole or not at all.

    A temporary folder left by a killed run is removed first. Two runs at once: the caller holds a lock.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refusal(f"{folder} is not an empty folder: remove or rename it, then unpack {archive.name} again.")
    temporary = folder.parent / f".{folder.name}.unpacking"
    with _open(archive) as zipped:
        members = _judge(archive, zipped, max_ratio)
        total = sum(member.file_size for member in members)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        free = shutil.disk_usage(folder.parent).free
        if total > free:
            raise Refusal(
                f"{archive} unpacks to {_megabytes(total)}, {folder.parent} has {_megabytes(free)} left: "
                "free the difference."
            )
        try:
            _write_all(zipped, members, temporary, total, progress)
            temporary.replace(folder)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise Refusal(f"{archive} is damaged ({error}): remove it and download it again.") from error
        except OSError as error:
            raise Refusal(
                f"{archive} could not be unpacked into {folder.parent} ({error.strerror or error}): "
                f"{_megabytes(total)} are needed there; the archive is kept."
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return [member.filename for member in members]


def _write_all(
    zipped: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path, total: int, progress: Progress | None
) -> None:
    folder.mkdir()
    done = 0
    for member in members:
        target = folder.joinpath(*PurePosixPath(member.filename).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipped.open(member) as source, target.open("xb") as sink:
            while chunk := source.read(CHUNK):
                sink.write(chunk)
                done += len(chunk)
                if progress:
                    progress(done, total)
    os.sync()  # once for all: a flush for each of 16,000 images would take minutes


def _open(archive: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(archive)
    except FileNotFoundError as error:
        raise Refusal(f"{archive} is missing: expected a zip file; download it again.") from error
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise Refusal(f"{archive} is no zip file: {describe(archive)}; remove it and download it again.") from error


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


def _judge(archive: Path, zipped: zipfile.ZipFile, max_ratio: float) -> list[zipfile.ZipInfo]:
    """The files in it (folders left out); Refusal if one name, kind or size is not what honest archives have."""
    files: list[zipfile.ZipInfo] = []
    problems: list[str] = []
    for member in zipped.infolist():
        if problem := _problem(member):
            problems.append(problem)
        elif not member.is_dir():
            files.append(member)
    problems += _collisions([member.filename for member in files])
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise Refusal(f"{archive} is refused, nothing was unpacked: {'; '.join(problems[:3])}{more}.")
    unpacked, packed = sum(member.file_size for member in files), max(1, archive.stat().st_size)
    if unpacked > SMALL and unpacked / packed > max_ratio:
        raise Refusal(
            f"{archive} is refused as a zip bomb: {_megabytes(packed)} would unpack to {_megabytes(unpacked)}, "
            f"{unpacked / packed:.0f} times as much (at most {max_ratio:g} times is allowed)."
        )
    return files


def _problem(member: zipfile.ZipInfo) -> str | None:
    name = member.orig_filename  # `filename` is cut at a NUL
    shown = ascii(name[:80])
    mode = member.external_attr >> 16
    if not name.strip("/ ") or any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in name):
        return f"odd name {shown}"
    if "\\" in name or name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return f"absolute or foreign path {shown}"
    parts = name.rstrip("/").split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return f"path that leaves the folder or is not plain {shown}"
    if any(len(part.encode()) > 255 for part in parts) or len(name.encode()) > 2048:
        return f"name too long {shown}"
    if stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR}:
        return f"link or special file {shown}"
    if member.flag_bits & 0x1:
        return f"encrypted file {shown}"
    return None


def _collisions(names: list[str]) -> list[str]:
    """Names that are one file on some disk (case, Unicode form), and files that other names use as a folder."""
    problems = []
    seen: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:
            problems.append(f"one name twice {seen[key][:80]!a}, {name[:80]!a}")
        seen[key] = name
    folders = {str(parent) for key in seen for parent in PurePosixPath(key).parents}
    return problems + [f"a file that is a folder too {seen[key][:80]!a}" for key in seen if key in folders]


def _compare(archive: Path, files: Mapping[str, int], listing: Mapping[str, int]) -> list[str]:
    absent = [name for name in listing if name not in files]
    wrong = [f"{n} ({files[n]} bytes, listed {listing[n]})" for n in listing if n in files and files[n] != listing[n]]
    if absent or wrong:
        parts = [f"{len(absent)} listed files are not in it ({', '.join(absent[:3])})"] if absent else []
        parts += [f"{len(wrong)} files have another size: {', '.join(wrong[:3])}"] if wrong else []
        raise Refusal(f"{archive} is not what the server lists: {'; '.join(parts)}; remove it and download it again.")
    extra = [name for name in files if name not in listing] if listing else []
    names = ", ".join(extra[:3])
    return [f"{len(extra)} files are in {archive.name} and not in the listing ({names})"] if extra else []


def _damaged(archive: Path, name: str) -> str:
    return f"{archive} is damaged: {name!r} does not match its checksum; remove the archive and download it again."


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
