"""Read, write and copy files on gs:// and on the local disk with TensorFlow's gfile, as the input pipeline does."""

import posixpath
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from competition.config.errors import UserError

LAST = "manifest.json"  # copied last: its existence means that the other files are complete


def read_bytes(path: str) -> bytes:
    with _as_user_error(path, "read"), _gfile(path).GFile(path, "rb") as file:
        return bytes(file.read())


def write_bytes(path: str, data: bytes) -> None:
    """Write a file atomically: an object on gs:// appears when it is complete, a local file is renamed."""
    gfile = _gfile(path)
    with _as_user_error(path, "written"):
        gfile.makedirs(posixpath.dirname(path))
        temporary = path if "://" in path else f"{path}.part"
        with gfile.GFile(temporary, "wb") as file:
            file.write(data)
        if temporary != path:
            gfile.rename(temporary, path, overwrite=True)


@contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Path of a local copy of a gs:// file, removed at the end of the block; a local path is returned as it is."""
    if "://" not in path:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / posixpath.basename(path)
        copy.write_bytes(read_bytes(path))
        yield str(copy)


def names(folder: str) -> list[str]:
    """Sorted paths of the files below a folder, relative to it."""
    root = folder.rstrip("/")
    paths = [
        posixpath.join(parent, name)[len(root) + 1 :]
        for parent, _, files in _gfile(folder).walk(root)
        for name in files
        if name  # on gs:// a folder may be an empty object called "folder/"
    ]
    return sorted(path for path in paths if path and not path.endswith("/"))


def copy_files(source: str, target: str, paths: Sequence[str]) -> None:
    """Copy files between folders on the disk or in a bucket. paths: relative to `source`.

    Every file is read back and compared. Manifests are copied last, so that an interrupted copy never looks complete.
    """
    for path in sorted(paths, key=lambda path: (posixpath.basename(path) == LAST, path)):
        data = read_bytes(f"{source.rstrip('/')}/{path}")
        copy = f"{target.rstrip('/')}/{path}"
        write_bytes(copy, data)
        if read_bytes(copy) != data:
            raise UserError(f"{copy} differs from its source after the copy: copy the folder again.")


@contextmanager
def _as_user_error(path: str, action: str) -> Iterator[None]:
    """Convert the errors of TensorFlow's file systems to one sentence."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        message = " ".join(str(error.message).split())[:300]
        raise UserError(f"{path} cannot be {action}: {message}; check the path and the access to the bucket.") from None


def _gfile(path: str) -> Any:
    import tensorflow as tf

    scheme = path.partition("://")[0] if "://" in path else ""
    if scheme and scheme not in tf.io.gfile.get_registered_schemes():
        raise UserError(f"{path}: expected a local path or gs://, this TensorFlow does not read {scheme}://.")
    return tf.io.gfile
