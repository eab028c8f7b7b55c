"""Decoded images by row number: in memory, in a file, decoded on demand, or several of these one after the other."""

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np

from competition.config.errors import UserError, first_few
from competition.files.image_codec import BadImage, Fit, decode
from competition.prepare import record_files


class StoredPixels(ABC):
    """Images (N, H, W, 3) uint8 outside the memory, indexed by row numbers like an array. Thread-safe."""

    shape: tuple[int, ...]

    @abstractmethod
    def read(self, row: int, buffer: np.ndarray) -> None:
        """Read one image into `buffer`, (H, W, 3) uint8."""

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """rows: (n,) int, 0 .. N - 1.  Returns (n, H, W, 3) uint8."""
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for image, row in zip(pixels, check_rows(rows, self.shape[0]), strict=True):
            self.read(row, image)
        return pixels


Pixels = np.ndarray | StoredPixels  # (N, H, W, 3) uint8


class PixelFile(StoredPixels):
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

    def read(self, row: int, buffer: np.ndarray) -> None:
        if os.preadv(self._file.fileno(), [buffer.data], self._start + row * self._image_bytes) != self._image_bytes:
            raise OSError(errno.EIO, f"row {row} of the decoded images is cut off")


class Stream(StoredPixels):
    """Images decoded from the record files on each access: slow, but in no more memory than a batch.

    The record files are indexed once, at the start.
    """

    def __init__(self, files: Sequence[str], ids: np.ndarray, unreadable: np.ndarray, size: int, fit: Fit) -> None:
        """files: local record files.  ids: (N,) str.  unreadable: (N,) bool, rows that stay black.

        Raises UserError if a readable image is in none of the files.
        """
        self.shape = (len(ids), size, size, 3)
        self._ids, self._unreadable, self._fit = ids, unreadable, fit
        self._files = [Path(file).open("rb") for file in files]  # noqa: SIM115  (open for the lifetime of this object)
        # (N, 3) int: file number, offset and length in bytes of the encoded image; length 0 = missing.
        self._locations = np.zeros((len(ids), 3), np.int64)
        row_of = {str(name): row for row, name in enumerate(ids)}
        for number, file in enumerate(files):
            for record in record_files.read_shard(file, labelled=True):
                if record.id in row_of:
                    self._locations[row_of[record.id]] = number, record.offset, len(record.image)
        check_none_missing(ids, (self._locations[:, 2] == 0) & ~unreadable)

    def read(self, row: int, buffer: np.ndarray) -> None:
        number, start, length = map(int, self._locations[row])
        if self._unreadable[row]:
            buffer[...] = 0
        else:
            data = os.pread(self._files[number].fileno(), length, start)
            buffer[...] = decode_record(self._ids[row], data, self.shape[1], self._fit)


class ConcatenatedPixels(StoredPixels):
    """The rows of several parts, one part after the other."""

    def __init__(self, parts: Sequence[Pixels]) -> None:
        self.parts, self._readers = parts, [image_reader(part) for part in parts]
        self._starts = np.cumsum([0, *(part.shape[0] for part in parts)])
        self.shape = (int(self._starts[-1]), *parts[0].shape[1:])

    def read(self, row: int, buffer: np.ndarray) -> None:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        self._readers[number](row - int(self._starts[number]), buffer)


def image_reader(pixels: Pixels) -> Callable[[int, np.ndarray], None]:
    """A function (row, buffer) that reads an image into the buffer, (H, W, 3) uint8. Thread-safe.

    Images in memory are copied too: an affine map reads its source out of order, and is twice as fast on a copy that is in
    the processor's cache (512 px, benchmarks/input_speed.py).
    """
    if isinstance(pixels, StoredPixels):
        return pixels.read
    return lambda row, buffer: np.copyto(buffer, pixels[row])


def is_streamed(pixels: Pixels) -> bool:
    """Return True if some of these images are decoded on each access."""
    parts = pixels.parts if isinstance(pixels, ConcatenatedPixels) else [pixels]
    return any(isinstance(part, Stream) for part in parts)


def decode_record(row_id: str, data: bytes, size: int, fit: Fit) -> np.ndarray:
    """The image of a record, (size, size, 3) uint8. Raises UserError if it cannot be decoded."""
    try:
        return decode(data, size, fit)
    except BadImage as bad:
        raise UserError(f"image {row_id}: {bad}; `make prepare` lists them and the remedies") from None


def check_rows(rows: np.ndarray, count: int) -> list[int]:
    """Row numbers as Python integers. Raises IndexError for one outside 0 .. count - 1: a file offset would not."""
    numbers = [int(row) for row in rows]
    if numbers and not (min(numbers) >= 0 and max(numbers) < count):
        raise IndexError(f"row numbers from {min(numbers)} to {max(numbers)} are outside the range of {count} rows")
    return numbers


def check_none_missing(ids: np.ndarray, is_missing: np.ndarray) -> None:
    """Raise UserError if images are in no record file.  ids: (N,) str.  is_missing: (N,) bool."""
    if is_missing.any():
        raise UserError(
            f"{is_missing.sum()} of {len(ids)} images are not in the record files, among {first_few(ids[is_missing])}; "
            "run `make download FORCE=1`"
        )
