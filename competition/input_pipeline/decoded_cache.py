"""Cache of decoded images, one per size for all folds, members, trials and views: on disk, in memory or both.

Images that fit neither are decoded on each access (`decoded_rows.Stream`). All three give the same pixels.
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path

import numpy as np
import PIL
from filelock import FileLock

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.files.image_codec import Fit
from competition.files.manifest import atomic_write
from competition.input_pipeline import decoded_rows
from competition.input_pipeline.decoded_rows import PixelFile, Pixels, Stream
from competition.prepare import record_files
from competition.prepare.tfrecord_format import Record
from competition.storage import files

LEFT_FREE = 1_000_000_000  # bytes of free disk space to leave for checkpoints and results
Progress = Callable[[int, int], None]
Put = Callable[[int, np.ndarray], None]  # stores the decoded image of a row
DISK_UNUSABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class CacheBudget:
    folder: Path  # decoded images on disk
    ram: int  # bytes; the images of one part at one size are held in memory up to this size
    disk: int  # bytes; limit for all files in `folder`


@dataclass(frozen=True)
class RecordedImages:
    """The images of N rows in record files.

    files: local or gs://.  ids: (N,) str.  unreadable: (N,) bool, rows whose image cannot be decoded; they stay black and
    are never predicted.  source: digest of the files' content.
    """

    files: Sequence[str]
    ids: np.ndarray
    unreadable: np.ndarray
    source: str


def decode_images(images: RecordedImages, size: int, fit: Fit, budget: CacheBudget, progress: Progress) -> Pixels:
    """Images (N, size, size, 3) uint8 in the order of the ids, decoded now unless they are on disk.

    The source, ids, size, fit and the decoder's version name the file in budget.folder, so stale pixels are never used.
    progress: called with (images decoded, N).
    Raises UserError for images that are missing or cannot be decoded.
    """
    shape = (len(images.ids), size, size, 3)
    path = cache_file(budget.folder, images.source, images.ids, size, fit)
    in_ram = prod(shape) <= budget.ram
    fill = partial(_fill, images, size, fit, progress)
    cached = _open_cached(path, shape) or _write_cached(path, shape, budget, fill)
    if cached is not None:
        return cached[np.arange(len(images.ids))] if in_ram else cached
    if in_ram:
        pixels = np.zeros(shape, np.uint8)
        fill(pixels.__setitem__)
        return pixels
    if any(map(files.is_remote, images.files)):
        raise UserError(
            f"{len(images.ids):,} decoded images of {size} pixels take {prod(shape) / 1e9:.1f} GB, which fit neither cache.ram_gigabytes "
            "nor cache.disk_gigabytes; raise one, or set cache.folder to a larger disk"
        )
    return Stream(images.files, images.ids, images.unreadable, size, fit)


def cached_images(folder: Path, source: str, ids: np.ndarray, size: int, fit: Fit) -> Pixels | None:
    """The images that `decode_images` wrote to `folder` for these arguments; None if they are not on disk."""
    if not any(folder.glob(f"{size}-*.npy")):  # the digest of all ids takes longer
        return None
    return _open_cached(cache_file(folder, source, ids, size, fit), (len(ids), size, size, 3))


def cache_file(folder: Path, source: str, ids: np.ndarray, size: int, fit: Fit) -> Path:
    """Path of the decoded images of one part at one size: an .npy file of shape (N, size, size, 3), uint8."""
    key = digest_of([source, fit, PIL.__version__, list(map(str, ids))])
    return folder / f"{size}-{key[:16]}.npy"


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
    path: Path, shape: tuple[int, ...], budget: CacheBudget, fill: Callable[[Put], None]
) -> PixelFile | None:
    """Write the images to disk; None if there is no space. A second process waits and uses the file of the first."""
    try:
        budget.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(budget.folder / "images.lock"):
            for leftover in budget.folder.glob(".*.npy"):  # of a killed process
                leftover.unlink(missing_ok=True)
            cached = _open_cached(path, shape)
            if cached is None and _make_space(budget, prod(shape)):
                with atomic_write(path) as temporary, temporary.open("wb") as file:
                    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                    file.flush()
                    start, image_bytes, handle = file.tell(), prod(shape[1:]), file.fileno()
                    file.truncate(start + prod(shape))

                    def write_image(row: int, image: np.ndarray) -> None:
                        data = np.ascontiguousarray(image).data
                        if os.pwrite(handle, data, start + row * image_bytes) != image_bytes:
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                    fill(write_image)
                cached = _open_cached(path, shape)
            return cached
    except OSError as error:
        if error.errno not in DISK_UNUSABLE:
            raise
        return None


def usable_bytes(budget: CacheBudget) -> int:
    """What decoded images on disk may take: the limit, or less where the disk has less free beside the sets that are there."""
    there = next(folder for folder in (budget.folder, *budget.folder.parents) if folder.is_dir())
    used = sum(file.stat().st_size for file in budget.folder.glob("[!.]*.npy"))
    return max(0, min(budget.disk, shutil.disk_usage(there).free - LEFT_FREE + used))


def _make_space(budget: CacheBudget, needed: int) -> bool:
    """Delete the least recently used files until `needed` bytes fit. If they can never fit, delete nothing, return False."""
    if needed > usable_bytes(budget):
        return False
    by_age = sorted(budget.folder.glob("[!.]*.npy"), key=lambda file: file.stat().st_mtime)
    used = sum(file.stat().st_size for file in by_age)
    while by_age and (used + needed > budget.disk or shutil.disk_usage(budget.folder).free - LEFT_FREE < needed):
        oldest = by_age.pop(0)
        used -= oldest.stat().st_size
        oldest.unlink()
    return True


def _fill(images: RecordedImages, size: int, fit: Fit, progress: Progress, put: Put) -> None:
    """Decode the images and call put(row, image) for every readable row, from several threads."""
    row_of = {str(name): n for n, name in enumerate(images.ids)}
    is_done = images.unreadable.copy()

    def decode_one(record: Record) -> int:
        row = row_of[record.id]
        if not images.unreadable[row]:
            put(row, decoded_rows.decode_record(record.id, record.image, size, fit))
        return row

    done = 0
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter's lock
        records = (record for file in images.files for record in record_files.read_shard(file))
        remaining = (record for record in records if record.id in row_of)
        while chunk := list(islice(remaining, 512)):
            for row in pool.map(decode_one, chunk):
                is_done[row] = True
            done += len(chunk)
            progress(done, len(images.ids))
    decoded_rows.check_none_missing(images.ids, ~is_done)
