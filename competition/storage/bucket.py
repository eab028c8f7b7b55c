"""Files on gs:// and on the local disk through one door: TensorFlow's gfile, which the input pipeline uses as well."""

import posixpath
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.kaggle.archive import Progress

LAST = "manifest.json"  # copied last: its existence says that the rest is there


def read_bytes(path: str) -> bytes:
    with _refusing(path, "read"), _gfile(path).GFile(path, "rb") as file:
        return bytes(file.read())


def write_bytes(path: str, data: bytes) -> None:
    """Whole or not at all: an object on gs:// appears when it is complete, a local file is renamed into place."""
    gfile = _gfile(path)
    with _refusing(path, "written"):
        gfile.makedirs(posixpath.dirname(path))
        whole = path if "://" in path else f"{path}.part"
        with gfile.GFile(whole, "wb") as file:
            file.write(data)
        if whole != path:
            gfile.rename(whole, path, overwrite=True)


@contextmanager
def local_copy(path: str) -> Iterator[str]:
    """The path itself, or of a gs:// file a copy that ends with the block, for what reads the local disk only."""
    if "://" not in path:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / posixpath.basename(path)
        copy.write_bytes(read_bytes(path))
        yield str(copy)


def names(folder: str) -> list[str]:
    """Files below a folder, relative to it, sorted."""
    gfile = _gfile(folder)
    start = folder.rstrip("/")
    found = [
        posixpath.join(at, name)[len(start) + 1 :]
        for at, _, files in gfile.walk(start)
        for name in files
        if name  # on gs:// a folder may be an empty object called "folder/"
    ]
    return sorted(name for name in found if name and not name.endswith("/"))


def copy_folder(source: str, target: str, progress: Progress | None = None) -> int:
    """Copy records, weights or predictions between the disk and a bucket, either way; the number of files.

    Every file is read back and compared. Manifests come last, so that a copy cut short never looks finished.
    """
    found = names(source)
    if not found:
        raise UserError(f"{source} holds no files: check the path.")
    copy_files(source, target, found, progress)
    return len(found)


def copy_files(source: str, target: str, found: Sequence[str], progress: Progress | None = None) -> None:
    """Some files of a folder, by their names in it; otherwise as `copy_folder`."""
    for done, name in enumerate(sorted(found, key=lambda name: (posixpath.basename(name) == LAST, name)), 1):
        data = read_bytes(f"{source.rstrip('/')}/{name}")
        there = f"{target.rstrip('/')}/{name}"
        write_bytes(there, data)
        if read_bytes(there) != data:
            raise UserError(f"{there} is not what was written to it: copy the folder again.")
        if progress:
            progress(done, len(found))


@contextmanager
def _refusing(path: str, what: str) -> Iterator[None]:
    """What TensorFlow's file systems raise, in one sentence."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        why = " ".join(str(error.message).split())[:300]
        raise UserError(f"{path} cannot be {what}: {why}; check the path, and who may use the bucket.") from None


def _gfile(path: str) -> Any:
    import tensorflow as tf

    scheme = path.partition("://")[0] if "://" in path else ""
    if scheme and scheme not in tf.io.gfile.get_registered_schemes():
        raise UserError(f"{path}: expected a local path or gs://, this TensorFlow does not read {scheme}://.")
    return tf.io.gfile
