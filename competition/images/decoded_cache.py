"""Cache of decoded images, one per size for all folds, members, trials and views: on disk, in memory or both.

Images that fit neither are decoded on each access (`decoded_rows.Stream`). All three give the same pixels.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
from competition.files.manifest import atomic_write
from competition.images import decoded_rows
from competition.images.decoded_rows import PixelFile, Pixels, Stream
from competition.prepare import record_shards
from competition.prepare.decoding import Fit
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
    return Stream(_local_copies(images.files, budget), images.ids, images.unreadable, size, fit)


def cached_images(folder: Path, source: str, ids: np.ndarray, size: int, fit: Fit) -> Pixels | None:
    """The images that `decode_images` wrote to `folder` for these arguments; None if they are not on disk."""
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
        with _exclusive(budget.folder):
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


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder for one writing process. Temporary files in it are then left-overs of a killed process: remove them."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "images.lock"):
        for leftover in [*folder.glob(".*.npy"), *folder.glob(".*.tfrec")]:
            leftover.unlink(missing_ok=True)
        yield


def usable_bytes(budget: CacheBudget) -> int:
    """What decoded images on disk may take: the limit, or less where the disk has less free beside the sets that are there."""
    there = next(folder for folder in (budget.folder, *budget.folder.parents) if folder.is_dir())
    used = sum(file.stat().st_size for file in budget.folder.glob("[!.]*.npy"))
    return max(0, min(budget.disk, shutil.disk_usage(there).free - LEFT_FREE + used))


def _make_space(budget: CacheBudget, needed: int) -> bool:
    """Delete the least recently used files until `needed` bytes fit. If they can never fit, delete nothing, return False."""
    files = [*budget.folder.glob("[!.]*.npy"), *budget.folder.glob("[!.]*.tfrec")]
    files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    used, free = sum(file.stat().st_size for file in files), shutil.disk_usage(budget.folder).free - LEFT_FREE
    if needed > min(budget.disk, free + used):
        return False
    while files and (used + needed > budget.disk or free < needed):
        size = files[-1].stat().st_size
        files.pop().unlink()
        used, free = used - size, shutil.disk_usage(budget.folder).free - LEFT_FREE
    return used + needed <= budget.disk and free >= needed


def _local_copies(record_files: Sequence[str], budget: CacheBudget) -> list[str]:
    """Paths of the record files that allow random access: their own, or those of local copies of remote files."""
    if not any(map(files.is_remote, record_files)):
        return list(record_files)
    identities = {file: files.identity(file) for file in record_files if files.is_remote(file)}
    copies = {
        file: budget.folder / f"{digest_of([file, size, version])[:16]}.tfrec"
        for file, (size, version) in identities.items()
    }
    with _exclusive(budget.folder):
        for copy in copies.values():
            with suppress(FileNotFoundError):
                os.utime(copy)  # so that the copies of other data are removed before these
        missing = [file for file, copy in copies.items() if not copy.exists()]
        kept = [copy for file, copy in copies.items() if file not in missing]
        has_space = not missing or _make_space(budget, sum(identities[file][0] for file in missing))
        if not has_space or not all(copy.exists() for copy in kept):
            raise UserError(
                f"the decoded images fit neither cache.ram_gigabytes nor cache.disk_gigabytes, and there is no space for copies of "
                f"{len(copies)} record files ({sum(size for size, _ in identities.values()) / 1e9:.2f} GB) to read them from; raise "
                "cache.disk_gigabytes, or cache.folder: a larger disk"
            )
        for file in missing:
            with atomic_write(copies[file]) as temporary, files.opened(file) as source, temporary.open("wb") as target:
                shutil.copyfileobj(source, target, files.CHUNK)
    return [str(copies.get(file, file)) for file in record_files]


def _fill(images: RecordedImages, size: int, fit: Fit, progress: Progress, put: Put) -> None:
    """Decode the images and call put(row, image) for every readable row, from several threads."""
    row_of = {str(name): n for n, name in enumerate(images.ids)}
    is_done = images.unreadable.copy()

    def decode_example(example: tuple[str, int, bytes]) -> int:
        row = row_of[example[0]]
        if not images.unreadable[row]:
            put(row, decoded_rows.decode_record(example[0], example[2], size, fit))
        return row

    done = 0
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter's lock
        remaining = (example for example in record_shards.read(images.files) if example[0] in row_of)
        while chunk := list(islice(remaining, 512)):
            for row in pool.map(decode_example, chunk):
                is_done[row] = True
            done += len(chunk)
            progress(done, len(images.ids))
    decoded_rows.check_none_missing(images.ids, ~is_done)
