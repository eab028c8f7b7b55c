"""Decoded images by row number: in memory, in a file, decoded on demand, or several of these one after the other."""

import errno
import os
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from competition.images import stream


class Pixels(Protocol):
    """Images (N, H, W, 3) uint8, indexed by row numbers. A NumPy array is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
        """rows: (n,) int, 0 .. N - 1.  Returns (n, H, W, 3) uint8.  Thread-safe."""


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
        for image, row in zip(pixels, stream.check_rows(rows, self.shape[0]), strict=True):
            self.read(row, image)
        return pixels

    def read(self, row: int, buffer: np.ndarray) -> np.ndarray:
        """One image, read into `buffer`, (H, W, 3) uint8."""
        if os.preadv(self._file.fileno(), [buffer.data], self._start + row * self._image_bytes) != self._image_bytes:
            raise OSError(errno.EIO, f"row {row} of the decoded images is cut off")
        return buffer


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
