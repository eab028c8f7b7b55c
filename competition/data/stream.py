"""Images read from the record files and decoded whenever they are asked for: slow, but in no more memory than a batch."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from competition.config.errors import UserError, first
from competition.data import records
from competition.data.images import BadImage, Fit, decode


class Stream:
    """(N, size, size, 3) uint8 by numbers of rows, like an array. Where each image lies is found out once, at the start."""

    def __init__(self, files: Sequence[str], ids: np.ndarray, unreadable: np.ndarray, size: int, fit: Fit) -> None:
        """files: local record files.  ids: (N,) str.  unreadable: (N,) bool, rows that stay black."""
        self.shape = (len(ids), size, size, 3)
        self._ids, self._unreadable, self._fit = ids, unreadable, fit
        self._files = [Path(file).open("rb") for file in files]  # noqa: SIM115  (open as long as this object lives)
        # (N, 3) int: file, first byte, bytes of the encoded image; 0 bytes = not found.
        self._where = np.zeros((len(ids), 3), np.int64)
        row_of = {str(name): row for row, name in enumerate(ids)}
        for number, file in enumerate(files):
            for name, start, length in records.places(file):
                if name in row_of:
                    self._where[row_of[name]] = number, start, length
        lost = (self._where[:, 2] == 0) & ~unreadable
        if lost.any():
            raise UserError(missing(ids[lost], len(ids)))
        self._pool = ThreadPoolExecutor(os.cpu_count())  # Pillow decodes without holding the interpreter's lock

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        pixels = np.zeros((len(rows), *self.shape[1:]), np.uint8)

        def put(place: int, row: int) -> None:
            if not self._unreadable[row]:
                pixels[place] = self._decoded(row)

        for _ in self._pool.map(put, range(len(rows)), checked(rows, self.shape[0])):
            pass
        return pixels

    def _decoded(self, row: int) -> np.ndarray:
        number, start, length = map(int, self._where[row])
        data = os.pread(self._files[number].fileno(), length, start)
        try:
            return decode(data, self.shape[1], self._fit)
        except BadImage as bad:
            raise UserError(
                f"image {self._ids[row]}: {bad}; `make download` lists such images and what to do"
            ) from None


def checked(rows: np.ndarray, count: int) -> list[int]:
    """Row numbers as Python's; one outside 0 to count - 1 is an error, as a wrong place in a file would not be."""
    numbers = [int(row) for row in rows]
    if numbers and not (min(numbers) >= 0 and max(numbers) < count):
        raise IndexError(f"rows from {min(numbers)} to {max(numbers)} of {count}")
    return numbers


def missing(ids: np.ndarray, count: int) -> str:
    return f"{len(ids)} of {count} images are not in the record files, among {first(ids)}; run `make download FORCE=1`"
