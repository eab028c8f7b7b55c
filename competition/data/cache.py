"""Images decoded once per size for all folds, members, trials and views: on disk, in memory, or both, as the budget allows.

What fits neither is decoded again whenever it is asked for (data/stream.py). All three give the same pixels.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL
from filelock import FileLock

from competition.artifacts.manifest import atomic_write, digest_of
from competition.config.errors import UserError
from competition.data import records, stream
from competition.data.images import BadImage, Fit, decode

LEFT_FREE = 1_000_000_000  # bytes of the disk that stay free, for checkpoints and results
NO_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class CacheBudget:
    folder: Path  # of decoded images on disk
    ram: int  # bytes; images of one part at one size that need no more are held in memory
    disk: int  # bytes of all that is in `folder`


class Pixels(Protocol):
    """(N, H, W, 3) uint8, asked for by numbers of rows. A NumPy array is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        """rows: (n,) int, 0 to N - 1 -> (n, H, W, 3) uint8. Several threads may ask at once."""


def decode_images(
    files: Sequence[str],
    ids: np.ndarray,
    unreadable: np.ndarray,
    size: int,
    fit: Fit,
    budget: CacheBudget,
    source: str,
    progress: Callable[[int, int], None],
) -> Pixels:
    """(N, size, size, 3) uint8 in the order of `ids`; decoded now when they are not on disk.

    files: record files, local or gs://.  ids: (N,) str.  unreadable: (N,) bool, rows whose image cannot be decoded: they
    stay black and are never predicted from.
    source: digest of what is in the files; with ids, size, fit and the decoder it names the file in budget.folder, so stale
    pixels are never found.
    """
    shape = (len(ids), size, size, 3)
    path = cache_file(budget.folder, source, ids, size, fit)
    in_ram = prod(shape) <= budget.ram

    def fill(put: Callable[[int, np.ndarray], None]) -> None:
        _fill(put, records.read(files), ids, unreadable, size, fit, progress)

    kept = _on_disk(path, shape) or _made_on_disk(path, shape, budget, fill)
    if kept is not None:
        return kept[np.arange(len(ids))] if in_ram else kept
    if in_ram:
        pixels = np.zeros(shape, np.uint8)
        fill(pixels.__setitem__)
        return pixels
    local = [_copied(file, budget) for file in files]
    return stream.Stream(local, ids, unreadable, size, fit)


def cached_images(folder: Path, source: str, ids: np.ndarray, size: int, fit: Fit) -> Pixels | None:
    """The images that `decode_images` wrote to `folder` for these arguments; None if they are not on disk."""
    return _on_disk(cache_file(folder, source, ids, size, fit), (len(ids), size, size, 3))


def cache_file(folder: Path, source: str, ids: np.ndarray, size: int, fit: Fit) -> Path:
    """Path of the decoded images of one part at one size: an .npy file of shape (N, size, size, 3), uint8."""
    key = digest_of([source, fit, PIL.__version__, list(map(str, ids))])
    return folder / f"{size}-{key[:16]}.npy"


class PixelFile:
    """An .npy file read row by row: mapped into memory, what was read would count as this process's memory."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        """Raises ValueError where the file is not a whole array of that shape."""
        self._file = path.open("rb")
        np.lib.format.read_magic(self._file)
        found, by_column, kind = np.lib.format.read_array_header_1_0(self._file)
        self._start, self._each, self.shape = self._file.tell(), prod(shape[1:]), shape
        whole = self._start + prod(shape)
        if (found, by_column, kind) != (shape, False, np.uint8) or os.fstat(self._file.fileno()).st_size != whole:
            raise ValueError(f"{path.name} is no whole array of shape {shape}")

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in zip(pixels, stream.checked(rows, len(self)), strict=True):
            found = os.pread(self._file.fileno(), self._each, self._start + row * self._each)
            place[:] = np.frombuffer(found, np.uint8).reshape(self.shape[1:])
        return pixels

    def __len__(self) -> int:
        return self.shape[0]


class ConcatenatedPixels:
    """Several parts, the rows of each behind those of the one before."""

    def __init__(self, parts: Sequence[Pixels]) -> None:
        self._parts = parts
        self._ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        rows = np.asarray(stream.checked(rows, self.shape[0]), int)
        owner = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owner):
            part, here = self._parts[number], owner == number
            pixels[here] = part[rows[here] - (self._ends[number] - part.shape[0])]
        return pixels


def is_streamed(pixels: Pixels) -> bool:
    """Are some of these images decoded anew each time?"""
    return isinstance(pixels, stream.Stream) or (
        isinstance(pixels, ConcatenatedPixels) and any(map(is_streamed, pixels._parts))
    )


def _on_disk(path: Path, shape: tuple[int, ...]) -> PixelFile | None:
    try:
        found = PixelFile(path, shape)
    except (OSError, ValueError):
        return None
    with suppress(OSError):
        os.utime(path)  # the longest unused makes room first
    return found


def _made_on_disk(
    path: Path, shape: tuple[int, ...], budget: CacheBudget, fill: Callable[[Callable[[int, np.ndarray], None]], None]
) -> PixelFile | None:
    """None where there is no room. A second process that wants the same waits, and takes what the first has made."""
    try:
        with _alone(budget.folder):
            found = _on_disk(path, shape)
            if found is None and _made_room(budget, prod(shape)):
                with atomic_write(path) as temporary, temporary.open("wb") as file:
                    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                    file.flush()
                    start, each, handle = file.tell(), prod(shape[1:]), file.fileno()
                    file.truncate(start + prod(shape))
                    fill(lambda row, image: _write(handle, np.ascontiguousarray(image), start + row * each))
                found = _on_disk(path, shape)
            return found
    except OSError as error:
        if error.errno not in NO_DISK:
            raise
        return None


def _write(handle: int, image: np.ndarray, where: int) -> None:
    if os.pwrite(handle, image.data, where) != image.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process writes here at a time, so temporary files found now were left behind by a killed one."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "images.lock"):
        for left in [*folder.glob(".*.npy"), *folder.glob(".*.tfrec")]:
            left.unlink(missing_ok=True)
        yield


def _made_room(budget: CacheBudget, needed: int) -> bool:
    """Remove what was not used for the longest time until `needed` bytes fit; nothing where they never would."""

    def kept() -> list[Path]:
        files = [*budget.folder.glob("[!.]*.npy"), *budget.folder.glob("[!.]*.tfrec")]
        return sorted(files, key=lambda file: file.stat().st_mtime)

    def used() -> int:
        return sum(file.stat().st_size for file in kept())

    def free() -> int:
        return shutil.disk_usage(budget.folder).free - LEFT_FREE

    if needed > budget.disk or needed > free() + used():
        return False
    while used() + needed > budget.disk or free() < needed:
        if not kept():
            return False
        kept()[0].unlink()
    return True


def _copied(file: str, budget: CacheBudget) -> str:
    """Where a record file can be read at any place: itself, or a local copy of a remote one."""
    if "://" not in file:
        return file
    import tensorflow as tf

    status = tf.io.gfile.stat(file)
    name = digest_of([file, status.length, status.mtime_nsec])[:16]
    copy = budget.folder / f"{name}.tfrec"
    with _alone(budget.folder):
        if not copy.exists():
            if not _made_room(budget, status.length):
                raise UserError(
                    f"the decoded images fit neither cache.ram_gigabytes nor cache.disk_gigabytes, and there is no room for "
                    f"a copy of {file} ({status.length / 1e9:.2f} GB) to read them from; raise cache.disk_gigabytes, or "
                    "cache.folder: a larger disk"
                )
            with atomic_write(copy) as temporary:
                tf.io.gfile.copy(file, str(temporary), overwrite=True)
        os.utime(copy)
    return str(copy)


def _fill(
    put: Callable[[int, np.ndarray], None],
    found: Iterable[tuple[str, int, bytes]],
    ids: np.ndarray,
    unreadable: np.ndarray,
    size: int,
    fit: Fit,
    progress: Callable[[int, int], None],
) -> None:
    """put(row, image) for every readable row, from several threads."""
    place = {str(name): n for n, name in enumerate(ids)}
    filled = unreadable.copy()

    def one(record: tuple[str, int, bytes]) -> int:
        row = place[record[0]]
        if not unreadable[row]:
            try:
                put(row, decode(record[2], size, fit))
            except BadImage as bad:
                raise UserError(f"image {record[0]}: {bad}; `make download` lists such images and what to do") from None
        return row

    done = 0
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter's lock
        for some in _batched((r for r in found if r[0] in place), 512):
            for row in pool.map(one, some):
                filled[row] = True
            done += len(some)
            progress(done, len(ids))
    if not filled.all():
        raise UserError(stream.missing(ids[~filled], len(ids)))


def _batched(items: Iterable[tuple[str, int, bytes]], size: int) -> Iterator[list[tuple[str, int, bytes]]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
