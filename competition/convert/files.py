"""Files on the local disk or on gs://, for the shard function, in an environment with TensorFlow or with Apache Beam.

gs:// is read by Apache Beam's file systems if Beam is installed, else by TensorFlow's. Neither is imported for local paths.
"""

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

from competition.config.errors import UserError

PARTIAL = "partial"  # folder of unfinished files in a local target; never read, emptied by the next run
CHUNK = 1 << 20  # bytes


def is_remote(path: str) -> bool:
    return "://" in path


@contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading; it can seek. Raises UserError if it cannot be read."""
    try:
        file = _open_remote(path, "rb") if is_remote(path) else Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; check the path") from None
    with file:
        yield file


def read_bytes(path: str) -> bytes:
    if is_remote(path) and not _has_beam():
        from competition.storage import bucket

        return bucket.read_bytes(path)  # its errors name the account and the bucket
    with reading(path) as file:
        return file.read()


def digest(path: str) -> str | None:
    """Return the sha256 of a file, or None if it does not exist."""
    if not exists(path):
        return None
    with reading(path) as file:
        state = sha256()
        while chunk := file.read(CHUNK):
            state.update(chunk)
    return state.hexdigest()


def exists(path: str) -> bool:
    if not is_remote(path):
        return Path(path).is_file()
    return bool(_beam().exists(path)) if _has_beam() else bool(_gfile().exists(path))


def names(folder: str) -> list[str]:
    """Return the sorted paths of all files below a folder, relative to it."""
    root = folder.rstrip("/")
    if not is_remote(folder):
        return sorted(path.relative_to(root).as_posix() for path in Path(root).rglob("*") if path.is_file())
    if _has_beam():
        matches = (match.path for result in _beam().match([f"{root}/**"]) for match in result.metadata_list)
        return sorted(path[len(root) + 1 :] for path in matches if not path.endswith("/"))
    from competition.storage import bucket

    return bucket.names(folder)


def remove(path: str) -> None:
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
    elif _has_beam():
        _beam().delete([path])
    else:
        _gfile().remove(path)


@contextmanager
def temporary_file(target: str) -> Iterator[Path]:
    """Yield the path of an empty file that `publish` can move below `target`; it is removed at the end if it still exists."""
    folder = None
    if not is_remote(target):
        folder = Path(target) / PARTIAL
        folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix="shard-", suffix=".partial", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def publish(temporary: Path, path: str) -> None:
    """Move a finished local file to `path` atomically: it appears there complete or not at all."""
    if not is_remote(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        return
    # An object appears when its upload is complete.
    with temporary.open("rb") as source, _open_remote(path, "wb") as file:
        shutil.copyfileobj(source, file, CHUNK)
    temporary.unlink()


def write_json(target: str, path: str, value: Any) -> None:
    """Write JSON to `path`, which lies below `target`, atomically."""
    write_bytes(target, path, (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8"))


def write_bytes(target: str, path: str, data: bytes) -> None:
    """Write a file below `target` atomically."""
    with temporary_file(target) as temporary:
        temporary.write_bytes(data)
        publish(temporary, path)


def read_json(path: str) -> Any:
    """Return the content of a JSON file, or None if it is missing or damaged."""
    try:
        return json.loads(read_bytes(path)) if exists(path) else None
    except ValueError:
        return None


def clear_partial(target: str) -> None:
    """Remove what killed processes left. Must not run beside another conversion into the same target."""
    if not is_remote(target):
        shutil.rmtree(Path(target) / PARTIAL, ignore_errors=True)


def _open_remote(path: str, mode: str) -> BinaryIO:
    if not _has_beam():
        return cast(BinaryIO, _gfile().GFile(path, mode))
    open_file = _beam().open if mode == "rb" else _beam().create
    return cast(BinaryIO, open_file(path, mime_type="application/octet-stream"))


def _has_beam() -> bool:
    return importlib.util.find_spec("apache_beam") is not None


def _beam() -> Any:
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile
