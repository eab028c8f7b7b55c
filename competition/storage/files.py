"""Files on the local disk, on gs://, or where fsspec reaches (s3://, hf://, ...): reading, listing, atomic writing, verified copying.

gs:// is read by TensorFlow's gfile, and by Apache Beam's file systems where Beam is installed, in an environment without
TensorFlow. gcsfs does not replace them: it adds 40 packages, and Kaggle's TPU image, where kernels run without internet access,
lacks it. None of them is imported for local paths.
"""

import importlib.util
import json
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from competition.config.errors import UserError, needed_for

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MANIFEST = "manifest.json"  # copied last: its existence means that the other files are complete
PARTIAL = ".partial-"  # start of the names of unfinished local files, which are never read
CHUNK = 1 << 20  # bytes


def is_remote(path: str) -> bool:
    return "://" in path


def read_bytes(path: str) -> bytes:
    with opened(path) as file:
        return file.read()


def read_json(path: str) -> Any:
    """Return the content of a JSON file, or None if it is missing or damaged."""
    try:
        return json.loads(read_bytes(path)) if exists(path) else None
    except ValueError:
        return None


def digest(path: str) -> str | None:
    """Return the sha256 of a file, or None if it does not exist."""
    if not exists(path):
        return None
    with opened(path) as file:
        state = sha256()
        while chunk := file.read(CHUNK):
            state.update(chunk)
    return state.hexdigest()


def exists(path: str) -> bool:
    if not is_remote(path):
        return Path(path).is_file()
    if other := _fsspec(path):
        with _fsspec_errors(path, "read"):
            return bool(other.exists(path))
    return bool((_beam() or _gfile(path)).exists(path))


def names(folder: str) -> list[str]:
    """Return the sorted paths of all finished files below a folder, relative to it."""
    root = folder.rstrip("/")
    if not is_remote(folder):
        paths = [path.as_posix() for path in Path(root).rglob("*") if path.is_file()]
    elif _fsspec(root):
        from fsspec.core import url_to_fs

        with _fsspec_errors(root, "read"):
            other, root = url_to_fs(root)  # the paths that it lists have no scheme
            paths = other.find(root)
    elif beam := _beam():
        paths = [match.path for result in beam.match([f"{root}/**"]) for match in result.metadata_list]
    else:
        paths = [posixpath.join(parent, name) for parent, _, files in _gfile(root).walk(root) for name in files]
    # On gs:// a folder may be an empty object called "folder/".
    paths = [path for path in paths if posixpath.basename(path) and not posixpath.basename(path).startswith(PARTIAL)]
    return sorted(posixpath.relpath(path, root) for path in paths)


def remove(path: str) -> None:
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
    elif other := _fsspec(path):
        with _fsspec_errors(path, "removed"):
            other.rm_file(path)
    elif beam := _beam():
        beam.delete([path])
    else:
        _gfile(path).remove(path)


@contextmanager
def temporary_file(folder: str) -> Iterator[Path]:
    """Yield the path of an empty file that `publish` can move below `folder`; it is removed at the end if it still exists."""
    if not is_remote(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=None if is_remote(folder) else folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def publish(temporary: Path, path: str) -> None:
    """Move a finished local file to `path` atomically: it appears there complete or not at all."""
    if other := _fsspec(path):
        # A file of fsspec would be uploaded in part if an error closed it.
        with _fsspec_errors(path, "written"):
            other.put_file(str(temporary), path)
        return
    if is_remote(path):
        # An object appears when its upload is complete.
        with temporary.open("rb") as source, opened(path, "wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("rb") as source:
        os.fsync(source.fileno())
    temporary.chmod(0o644)
    temporary.replace(path)


def clear_partial(folder: str) -> None:
    """Remove what killed processes left below a local folder. Must not run beside a process that writes into it."""
    for leftover in Path(folder).rglob(f"{PARTIAL}*"):
        leftover.unlink()


def write_bytes(path: str, data: bytes) -> None:
    """Write a file atomically."""
    with temporary_file(posixpath.dirname(path)) as temporary:
        temporary.write_bytes(data)
        publish(temporary, path)


def write_json(path: str, value: object) -> None:
    """Write a value as JSON, atomically."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8"))


@contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Path of a local copy of a remote file, removed at the end of the block; a local path is returned as it is."""
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / posixpath.basename(path)
        copy.write_bytes(read_bytes(path))
        yield str(copy)


def copy_files(source: str, target: str, paths: Sequence[str]) -> None:
    """Copy files between folders on the disk or in a bucket. paths: relative to `source`.

    Every file is read back and compared. Manifests are copied last, so that an interrupted copy never looks complete.
    """
    for path in sorted(paths, key=lambda path: (posixpath.basename(path) == MANIFEST, path)):
        data = read_bytes(f"{source.rstrip('/')}/{path}")
        copy = f"{target.rstrip('/')}/{path}"
        write_bytes(copy, data)
        if read_bytes(copy) != data:
            raise UserError(f"{copy} differs from its source after the copy: copy the folder again.")


@contextmanager
def opened(path: str, mode: str = "rb") -> Iterator[BinaryIO]:
    """Open a file for reading, where it can seek, or for writing. Raises UserError if that is not possible."""
    action = "read" if mode == "rb" else "written"
    if other := _fsspec(path):
        with _fsspec_errors(path, action):
            file = other.open(path, mode)
        with file:
            yield file
        return
    beam = _beam() if is_remote(path) else None
    if beam or not is_remote(path):
        try:
            if beam:
                file = (beam.open if mode == "rb" else beam.create)(path, mime_type="application/octet-stream")
            else:
                file = cast(BinaryIO, Path(path).open(mode))  # noqa: SIM115
        except OSError as error:
            raise UserError(f"{path} cannot be {action}: {error.strerror or error}; check the path") from None
        with file:
            yield file
        return
    gfile = _gfile(path)
    import tensorflow as tf

    try:
        with gfile.GFile(path, mode) as file:
            yield file
    except tf.errors.OpError as error:
        message = " ".join(str(error.message).split())[:300]
        raise UserError(f"{path} cannot be {action}: {message}; check the path and the access to the bucket.") from None


@contextmanager
def _fsspec_errors(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each file system has errors of its own, of which few are an OSError
        message = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{path} cannot be {action}: {message}; check the path and the credentials") from None


def _fsspec(path: str) -> "AbstractFileSystem | None":
    """The file system of an address; None for local paths and gs://. Raises UserError if no package for it is installed."""
    scheme = path.partition("://")[0]
    if scheme in ("gs", path):
        return None
    with needed_for(f"{path}: {scheme}://", "remote"):
        from fsspec import filesystem
    try:
        return filesystem(scheme)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{path}: no file system for {scheme}:// ({error}); install its package, or use a local path or gs://"
        ) from None


def _beam() -> Any:
    """Apache Beam's file systems; None where it is not installed."""
    if importlib.util.find_spec("apache_beam") is None:
        return None
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def _gfile(path: str) -> Any:
    import tensorflow as tf

    scheme = path.partition("://")[0]
    if scheme not in tf.io.gfile.get_registered_schemes():
        raise UserError(f"{path}: expected a local path or gs://, this TensorFlow does not read {scheme}://.")
    return tf.io.gfile
