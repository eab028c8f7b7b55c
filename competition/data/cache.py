"""Cache of decoded images, one per size for all folds, members, trials and views: on disk, in memory or both.

Images that fit neither are decoded on each access (data/stream.py). All three give the same pixels.
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

LEFT_FREE = 1_000_000_000  # bytes of free disk space to leave for checkpoints and results
DISK_UNUSABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class CacheBudget:
    folder: Path  # decoded images on disk
    ram: int  # bytes; the images of one part at one size are held in memory up to this size
    disk: int  # bytes; limit for all files in `folder`


class Pixels(Protocol):
    """Images (N, H, W, 3) uint8, indexed by row numbers. A NumPy array is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        """rows: (n,) int, 0 .. N - 1.  Returns (n, H, W, 3) uint8.  Thread-safe."""


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
    """Images (N, size, size, 3) uint8 in the order of `ids`, decoded now unless they are on disk.

    files: record files, local or gs://.  ids: (N,) str.  unreadable: (N,) bool, rows whose image cannot be decoded; they
    stay black and are never predicted.
    source: digest of the files' content. With ids, size, fit and the decoder's version it names the file in budget.folder,
    so stale pixels are never used.
    progress: called with (images decoded, N).
    Raises UserError for images that are missing or cannot be decoded.
    """
    shape = (len(ids), size, size, 3)
    path = cache_file(budget.folder, source, ids, size, fit)
    in_ram = prod(shape) <= budget.ram

    def fill(put: Callable[[int, np.ndarray], None]) -> None:
        _fill(put, records.read(files), ids, unreadable, size, fit, progress)

    cached = _open_cached(path, shape) or _write_cached(path, shape, budget, fill)
    if cached is not None:
        return cached[np.arange(len(ids))] if in_ram else cached
    if in_ram:
        pixels = np.zeros(shape, np.uint8)
        fill(pixels.__setitem__)
        return pixels
    local_files = [_local_copy(file, budget) for file in files]
    return stream.Stream(local_files, ids, unreadable, size, fit)


def cached_images(folder: Path, source: str, ids: np.ndarray, size: int, fit: Fit) -> Pixels | None:
    """The images that `decode_images` wrote to `folder` for these arguments; None if they are not on disk."""
    return _open_cached(cache_file(folder, source, ids, size, fit), (len(ids), size, size, 3))


def cache_file(folder: Path, source: str, ids: np.ndarray, size: int, fit: Fit) -> Path:
    """Path of the decoded images of one part at one size: an .npy file of shape (N, size, size, 3), uint8."""
    key = digest_of([source, fit, PIL.__version__, list(map(str, ids))])
    return folder / f"{size}-{key[:16]}.npy"


class PixelFile:
    """An .npy file read row by row, into the caller's memory.

    A memory map would count the pages read as memory of this process, and an affine map is twice as slow on it as on a copy.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless the file is a complete uint8 array of this shape."""
        self._file = path.open("rb")
        np.lib.format.read_magic(self._file)
        header = np.lib.format.read_array_header_1_0(self._file)
        self._start, self._image_bytes, self.shape = self._file.tell(), prod(shape[1:]), shape
        file_bytes = self._start + prod(shape)
        if header != (shape, False, np.uint8) or os.fstat(self._file.fileno()).st_size != file_bytes:
            raise ValueError(f"{path.name} is not a complete array of shape {shape}")

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for image, row in zip(pixels, stream.check_rows(rows, len(self)), strict=True):
            self.read(row, image)
        return pixels

    def read(self, row: int, buffer: np.ndarray) -> np.ndarray:
        """One image, read into `buffer`, (H, W, 3) uint8."""
        if os.preadv(self._file.fileno(), [buffer.data], self._start + row * self._image_bytes) != self._image_bytes:
            raise OSError(errno.EIO, f"row {row} of the decoded images is cut off")
        return buffer

    def __len__(self) -> int:
        return self.shape[0]


class ConcatenatedPixels:
    """The rows of several parts, one part after the other."""

    def __init__(self, parts: Sequence[Pixels]) -> None:
        self._parts = parts
        self._ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        rows = np.asarray(stream.check_rows(rows, self.shape[0]), int)
        owner = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owner):
            part, is_own = self._parts[number], owner == number
            pixels[is_own] = part[rows[is_own] - (self._ends[number] - part.shape[0])]
        return pixels

    def read(self, row: int, buffer: np.ndarray) -> np.ndarray:
        """One image, (H, W, 3) uint8, in `buffer` or in new memory."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        part = self._parts[number]
        return image_reader(part)(row - int(self._ends[number] - part.shape[0]), buffer)


def image_reader(pixels: Pixels) -> Callable[[int, np.ndarray], np.ndarray]:
    """A function (row, buffer) -> image (H, W, 3) uint8, in `buffer` or in new memory. Thread-safe with a buffer per thread.

    Images in memory are copied too: an affine map reads its source out of order, and is twice as fast on a copy that is in
    the processor's cache (512 px, benchmarks/input_speed.py).
    """
    if isinstance(pixels, PixelFile | ConcatenatedPixels | stream.Stream):
        return pixels.read

    def read(row: int, buffer: np.ndarray) -> np.ndarray:
        np.copyto(buffer, pixels[row] if isinstance(pixels, np.ndarray) else pixels[np.array([row])][0])
        return buffer

    return read


def is_streamed(pixels: Pixels) -> bool:
    """Return True if some of these images are decoded on each access."""
    return isinstance(pixels, stream.Stream) or (
        isinstance(pixels, ConcatenatedPixels) and any(map(is_streamed, pixels._parts))
    )


def _open_cached(path: Path, shape: tuple[int, ...]) -> PixelFile | None:
    """The cached file, or None if it is missing or not complete."""
    try:
        cached = PixelFile(path, shape)
    except (OSError, ValueError):
        return None
    with suppress(OSError):
        os.utime(path)  # marks it as recently used
    return cached


def _write_cached(
    path: Path, shape: tuple[int, ...], budget: CacheBudget, fill: Callable[[Callable[[int, np.ndarray], None]], None]
) -> PixelFile | None:
    """Write the images to disk; None if there is no space. A second process waits and uses the file of the first."""
    try:
        with _exclusive(budget.folder):
            cached = _open_cached(path, shape)
            if cached is None and _make_space(budget, prod(shape)):
                with atomic_write(path) as temporary, temporary.open("wb") as file:
                    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                    file.flush()
                    start, image_bytes, handle = file.tell(), prod(shape[1:]), file.fileno()
                    file.truncate(start + prod(shape))
                    fill(lambda row, image: _write(handle, np.ascontiguousarray(image), start + row * image_bytes))
                cached = _open_cached(path, shape)
            return cached
    except OSError as error:
        if error.errno not in DISK_UNUSABLE:
            raise
        return None


def _write(handle: int, image: np.ndarray, offset: int) -> None:
    if os.pwrite(handle, image.data, offset) != image.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder for one writing process. Temporary files in it are then left-overs of a killed process: remove them."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "images.lock"):
        for leftover in [*folder.glob(".*.npy"), *folder.glob(".*.tfrec")]:
            leftover.unlink(missing_ok=True)
        yield


def _make_space(budget: CacheBudget, needed: int) -> bool:
    """Delete the least recently used files until `needed` bytes fit. If they can never fit, delete nothing, return False."""

    def cached_files() -> list[Path]:
        files = [*budget.folder.glob("[!.]*.npy"), *budget.folder.glob("[!.]*.tfrec")]
        return sorted(files, key=lambda file: file.stat().st_mtime)

    def used() -> int:
        return sum(file.stat().st_size for file in cached_files())

    def free() -> int:
        return shutil.disk_usage(budget.folder).free - LEFT_FREE

    if needed > budget.disk or needed > free() + used():
        return False
    while used() + needed > budget.disk or free() < needed:
        if not cached_files():
            return False
        cached_files()[0].unlink()
    return True


def _local_copy(file: str, budget: CacheBudget) -> str:
    """A path of the record file that allows random access: its own, or that of a local copy of a remote file."""
    if "://" not in file:
        return file
    import tensorflow as tf

    status = tf.io.gfile.stat(file)
    name = digest_of([file, status.length, status.mtime_nsec])[:16]
    copy = budget.folder / f"{name}.tfrec"
    with _exclusive(budget.folder):
        if not copy.exists():
            if not _make_space(budget, status.length):
                raise UserError(
                    f"the decoded images fit neither cache.ram_gigabytes nor cache.disk_gigabytes, and there is no space for "
                    f"a copy of {file} ({status.length / 1e9:.2f} GB) to read them from; raise cache.disk_gigabytes, or "
                    "cache.folder: a larger disk"
                )
            with atomic_write(copy) as temporary:
                tf.io.gfile.copy(file, str(temporary), overwrite=True)
        os.utime(copy)
    return str(copy)


def _fill(
    put: Callable[[int, np.ndarray], None],
    examples: Iterable[tuple[str, int, bytes]],
    ids: np.ndarray,
    unreadable: np.ndarray,
    size: int,
    fit: Fit,
    progress: Callable[[int, int], None],
) -> None:
    """Decode the images and call put(row, image) for every readable row, from several threads.

    examples: (id, label, encoded image).
    """
    row_of = {str(name): n for n, name in enumerate(ids)}
    is_done = unreadable.copy()

    def decode_example(example: tuple[str, int, bytes]) -> int:
        row = row_of[example[0]]
        if not unreadable[row]:
            try:
                put(row, decode(example[2], size, fit))
            except BadImage as bad:
                raise UserError(
                    f"image {example[0]}: {bad}; `make download` lists such images and the remedies"
                ) from None
        return row

    done = 0
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter's lock
        for chunk in _chunks((e for e in examples if e[0] in row_of), 512):
            for row in pool.map(decode_example, chunk):
                is_done[row] = True
            done += len(chunk)
            progress(done, len(ids))
    if not is_done.all():
        raise UserError(stream.missing_images_message(ids[~is_done], len(ids)))


def _chunks(items: Iterable[tuple[str, int, bytes]], size: int) -> Iterator[list[tuple[str, int, bytes]]]:
    """itertools.batched of Python 3.12."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
