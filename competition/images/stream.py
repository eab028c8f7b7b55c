"""Images decoded from the record files on each access: slow, but in no more memory than a batch."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from competition.config.errors import UserError, first_few
from competition.prepare import record_shards
from competition.prepare.decoding import BadImage, Fit, decode


class Stream:
    """Images (N, size, size, 3) uint8, indexed by row numbers like an array. The record files are indexed once, at the start."""

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
            for record in record_shards.read_shard(file, labelled=True):
                if record.id in row_of:
                    self._locations[row_of[record.id]] = number, record.offset, len(record.image)
        is_missing = (self._locations[:, 2] == 0) & ~unreadable
        if is_missing.any():
            raise UserError(missing_images_message(ids[is_missing], len(ids)))
        self._pool = ThreadPoolExecutor(os.cpu_count())  # Pillow decodes without holding the interpreter's lock

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for position, image in enumerate(self._pool.map(self.read, check_rows(rows, self.shape[0]))):
            pixels[position] = image
        return pixels

    def read(self, row: int, buffer: np.ndarray | None = None) -> np.ndarray:
        """One image, decoded; `buffer` is not used."""
        if self._unreadable[row]:
            return np.zeros(self.shape[1:], np.uint8)
        number, start, length = map(int, self._locations[row])
        data = os.pread(self._files[number].fileno(), length, start)
        return decode_record(self._ids[row], data, self.shape[1], self._fit)


def decode_record(row_id: str, data: bytes, size: int, fit: Fit) -> np.ndarray:
    """The image of a record, (size, size, 3) uint8. Raises UserError if it cannot be decoded."""
    try:
        return decode(data, size, fit)
    except BadImage as bad:
        raise UserError(f"image {row_id}: {bad}; `make download` lists such images and the remedies") from None


def check_rows(rows: np.ndarray, count: int) -> list[int]:
    """Row numbers as Python integers. Raises IndexError for one outside 0 .. count - 1: a file offset would not."""
    numbers = [int(row) for row in rows]
    if numbers and not (min(numbers) >= 0 and max(numbers) < count):
        raise IndexError(f"row numbers from {min(numbers)} to {max(numbers)} are outside the range of {count} rows")
    return numbers


def missing_images_message(ids: np.ndarray, count: int) -> str:
    """Error message for images that are in no record file.  ids: (n,) str.  count: number of images expected."""
    return (
        f"{len(ids)} of {count} images are not in the record files, among {first_few(ids)}; run `make download FORCE=1`"
    )
