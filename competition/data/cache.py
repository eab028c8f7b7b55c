"""Images decoded once per size: one memory-mapped uint8 array for all folds, members, trials and views."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from competition.data.images import BadImage, Fit, decode
from competition.errors import Refusal
from competition.manifest import atomic, digest_of

Record = tuple[str, int, bytes]  # id, class, encoded image


def decoded(
    read: Callable[[], Iterable[Record]],
    ids: np.ndarray,
    unreadable: np.ndarray,
    size: int,
    fit: Fit,
    folder: Path,
    source: str,
    progress: Callable[[int, int], None],
) -> np.ndarray:
    """(N, size, size, 3) uint8 in the order of `ids`, read-only, from a file in `folder` that is made when it is missing.

    ids: (N,) str.  unreadable: (N,) bool, rows whose image cannot be decoded: they stay black and are never predicted from.
    source: digest of what `read` yields; with size, fit and ids it names the file, so stale pixels are never found.
    """
    path = folder / f"{size}-{digest_of([source, fit, list(map(str, ids))])[:16]}.npy"
    if not path.exists():
        with atomic(path) as temporary:
            pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=(len(ids), size, size, 3))
            _fill(pixels, read(), ids, unreadable, size, fit, progress)
            pixels.flush()
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _fill(
    pixels: np.ndarray,
    records: Iterable[Record],
    ids: np.ndarray,
    unreadable: np.ndarray,
    size: int,
    fit: Fit,
    progress: Callable[[int, int], None],
) -> None:
    place = {str(name): n for n, name in enumerate(ids)}
    filled = unreadable.copy()

    def put(record: Record) -> int:
        row = place[record[0]]
        if not unreadable[row]:
            try:
                pixels[row] = decode(record[2], size, fit)
            except BadImage as bad:
                raise Refusal(f"image {record[0]}: {bad}; `make download` lists such images and what to do") from None
        return row

    done = 0
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter's lock
        for some in _batched((r for r in records if r[0] in place), 512):
            for row in pool.map(put, some):
                filled[row] = True
            done += len(some)
            progress(done, len(ids))
    if not filled.all():
        names = ", ".join(map(str, ids[~filled][:5]))
        raise Refusal(
            f"{int((~filled).sum())} of {len(ids)} images are not in the record files ({names} ...); run `make download FORCE=1`"
        )


def _batched(items: Iterable[Record], size: int) -> Iterator[list[Record]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
