"""Manifests: JSON files beside results, written last, so that their existence means "complete"; and atomic file writes.

Files are written under a temporary name in the same folder, flushed to disk and renamed, so partial files never count.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from competition.config.digests import digest_of, to_plain
from competition.config.faults import fault_point

T = TypeVar("T")
CHUNK = 1 << 18  # bytes
DIGEST = r"\b([0-9a-f]{12})[0-9a-f]{52}\b"  # its first digits are enough for a reader


@dataclass(frozen=True)
class Manifest:
    digest: str  # of `depends`
    depends: dict[str, Any]  # the parameters and input digests that the result was computed from, and nothing else
    files: dict[str, str]  # path relative to the manifest's folder -> sha256
    result: dict[str, Any]  # summary for readers: scores, counts, seconds
    made_with: dict[str, str]  # package -> version


@dataclass(frozen=True)
class Stored:
    """A result that is stored, or is to be computed."""

    manifest: Path  # beside its files
    depends: dict[str, Any]  # what it is computed from, and nothing else

    @property
    def is_current(self) -> bool:
        """Whether it is complete and was computed from exactly `depends`.

        A file's existence alone proves nothing: a killed process may have left it.
        """
        manifest = read_manifest(self.manifest)
        if manifest is None or manifest.digest != digest_of(self.depends):
            return False
        return files_intact(self.manifest, manifest)


def sha256(path: Path) -> str:
    """Return the hexadecimal sha256 of a file."""
    # Half the time of hashlib.file_digest for a small file, because no buffer is cleared; a string is opened faster than a Path.
    with open(str(path), "rb", buffering=0) as file:  # noqa: PTH123
        digest = hashlib.sha256(file.read(CHUNK))
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def display_path(path: Path) -> str:
    """Path relative to the current folder if it lies below it, else unchanged."""
    resolved, here = path.resolve(), Path.cwd()
    return resolved.relative_to(here).as_posix() if resolved.is_relative_to(here) else str(path)


def path_digest(path: Path) -> str:
    """Digest of a file, or of the names and contents of all files in a folder; "" if there is neither."""
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file())
        return digest_of({file.relative_to(path).as_posix(): sha256(file) for file in files})
    return sha256(path) if path.is_file() else ""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path with the same suffix; rename it to `path` on success, delete it on an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        fault_point("file.before_sync", path)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        fault_point("file.before_rename", path)
        temporary.replace(path)
        fault_point("file.after_rename", path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value of `to_plain` as indented JSON, atomically. NaN is an error."""
    write_text(path, json.dumps(to_plain(value), indent=1, allow_nan=False) + "\n")


def copy_file(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    with atomic_write(target) as temporary:
        shutil.copyfile(source, temporary)


def read_record(path: Path, record: Callable[..., T]) -> T | None:
    """Return `record` called with the fields of a JSON object; None if the file is missing, damaged or of other fields."""
    try:
        return record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_manifest(
    path: Path,
    depends: Mapping[str, Any],
    files: Iterable[Path],
    result: Mapping[str, Any],
    made_with: Mapping[str, str],
) -> Manifest:
    """Mark a result as complete. Must be called last: all of `files` must be on disk."""
    folder = f"{path.parent.as_posix()}/"  # cut as text: Path.relative_to takes as long as the digest of a small file
    digests = {file.as_posix().removeprefix(folder): sha256(file) for file in files}
    manifest = Manifest(digest_of(depends), to_plain(depends), digests, to_plain(result), dict(made_with))
    write_json(path, manifest)
    return manifest


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest, or None if the file is missing or damaged."""
    try:
        manifest = Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    blocks = (manifest.depends, manifest.files, manifest.result, manifest.made_with)
    is_valid = isinstance(manifest.digest, str) and all(isinstance(block, dict) for block in blocks)
    return manifest if is_valid else None


def intact_manifest(path: Path) -> Manifest | None:
    """Return the manifest of a result; None if the result is missing, partial or damaged."""
    manifest = read_manifest(path)
    return manifest if manifest is not None and files_intact(path, manifest) else None


def files_intact(path: Path, manifest: Manifest) -> bool:
    """Return True if all files of the manifest at `path` exist with the recorded digests."""
    return next(damaged_files(path, manifest), None) is None


def damaged_files(path: Path, manifest: Manifest) -> Iterator[str]:
    """The names of files of the manifest at `path` that are missing or have another digest."""
    for name, digest in manifest.files.items():
        file = path.parent / name
        if not file.is_file() or sha256(file) != digest:
            yield name


def changed_keys(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return "key: old value -> new value" for each dotted key in which two `depends` differ: why a result is stale."""
    before, after = flattened(to_plain(recorded)), flattened(to_plain(current))
    changes = []
    for key in {**before, **after}:
        values = [tree.get(key, "absent") for tree in (before, after)]
        if values[0] != values[1]:
            old, new = (re.sub(DIGEST, r"\1", str(value))[:60] for value in values)
            changes.append(f"{key}: {old} -> {new}")
    return changes


def flattened(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of nested mappings, an empty one being a value.  prefix: of the keys."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix: tree}
    return {
        key: value
        for name, item in tree.items()
        for key, value in flattened(item, f"{prefix}.{name}".strip(".")).items()
    }
