"""A manifest is a JSON beside a result, written last: its existence means "done", its digest says from what.

Files appear whole or not at all: written under a temporary name in the same folder, flushed to disk, then renamed.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Manifest:
    digest: str  # of `depends`
    depends: dict[str, Any]  # parameters and digests of inputs this result was made from, and no others
    files: dict[str, str]  # path relative to the manifest's folder -> sha256
    result: dict[str, Any]  # what a reader wants to know of it: scores, counts, seconds
    made_with: dict[str, str]  # versions


def digest_of(value: Any) -> str:
    """sha256 of the canonical JSON of plain values and dataclasses."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and paths as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, Path):
        return value.as_posix()
    return value.item() if hasattr(value, "item") else value


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path (same suffix) to write to; renamed to `path` when the block ends well, removed when not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(to_plain(value), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_manifest(
    path: Path,
    depends: Mapping[str, Any],
    files: Iterable[Path],
    result: Mapping[str, Any],
    made_with: Mapping[str, str],
) -> Manifest:
    """Seal a result. Call it last: everything named in `files` must be on disk by now."""
    made = Manifest(
        digest_of(depends),
        to_plain(depends),
        {file.relative_to(path.parent).as_posix(): sha256(file) for file in files},
        to_plain(result),
        dict(made_with),
    )
    write_json(path, made)
    return made


def read_manifest(path: Path) -> Manifest | None:
    """None where there is none, or where what is there cannot be one (a damaged file is not a result)."""
    try:
        made = Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    blocks = (made.depends, made.files, made.result, made.made_with)
    return made if isinstance(made.digest, str) and all(isinstance(block, dict) for block in blocks) else None


def is_current(path: Path, depends: Mapping[str, Any]) -> bool:
    """True when the result beside this manifest was made from exactly `depends` and is whole.

    A file that merely exists proves nothing: a killed process may have left it.
    """
    made = read_manifest(path)
    return made is not None and made.digest == digest_of(depends) and files_intact(path, made)


def files_intact(path: Path, made: Manifest) -> bool:
    files = ((path.parent / name, digest) for name, digest in made.files.items())
    return all(file.is_file() and sha256(file) == digest for file, digest in files)


def changed_keys(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Dotted keys in which two `depends` differ, with both values: why a result is made again."""
    before, after = _flat(to_plain(made)), _flat(to_plain(wanted))
    keys = [key for key in {**before, **after} if before.get(key, "absent") != after.get(key, "absent")]
    return [f"{key}: {_short(before.get(key, 'absent'))} -> {_short(after.get(key, 'absent'))}" for key in keys]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    return {
        key: value for name, item in tree.items() for key, value in _flat(item, f"{prefix}.{name}".strip(".")).items()
    }


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text[:60]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
