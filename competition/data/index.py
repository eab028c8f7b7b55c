"""One row per image: what it is, where it lies, what it looks like. Made once; everything later joins it by id."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.fft import dctn

from competition.config.errors import UserError, first
from competition.data import images
from competition.data.competition import Row

COLUMNS = {
    "id": str, "label": int, "part": str, "shard": str, "place": int, "width": int, "height": int, "bytes": int,
    "sha256": str, "phash": str, "problem": str, "group": int, "fold": int,
}  # fmt: skip
THUMB = 16  # pixels a side of a thumbnail
LOOK = 32  # pixels a side of what the perceptual hash sees
UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
CHUNK = 512  # images in memory at once
Progress = Callable[[int, int], None]


def build(rows: Iterable[Row], classes: int, progress: Progress | None = None) -> tuple[pd.DataFrame, np.ndarray]:
    """(index, thumbs): all rows in order, with digests and sizes; thumbs (N, 16, 16, 3) uint8, grey where unreadable.

    `group` is still the row's own number and `fold` -1: duplicates.groups and folds.assign give them.
    Decoding is spread over threads: Pillow and hashlib let go of the interpreter's lock. The total that `progress`
    is given is 0, unknown.
    """
    told: list[dict[str, object]] = []
    thumbs: list[np.ndarray] = []
    source = iter(rows)
    with ThreadPoolExecutor() as pool:
        while chunk := list(islice(source, CHUNK)):
            entries, looks = zip(*pool.map(_look_at, chunk), strict=True)
            seen = np.stack(looks)
            told += [
                {**entry, "phash": f"{value:016x}"} for entry, value in zip(entries, perceptual_hash(seen), strict=True)
            ]
            thumbs.append(_thumbs(seen))
            if progress:
                progress(len(told), 0)
    if not told:
        raise UserError("no image was found in the raw files; make download FORCE=1 fetches them again")
    index = pd.DataFrame(told)
    index["group"] = np.arange(len(index))
    index["fold"] = -1
    _check(index, classes)
    return index[list(COLUMNS)], np.concatenate(thumbs)


def perceptual_hash(looks: np.ndarray) -> np.ndarray:
    """(N,) uint64: which of the 64 lowest frequencies of the grey image lie above their median (pHash, Zauner 2010).

    looks: (N, 32, 32, 3) uint8. The constant term is left out of the median: it is how bright the image is, not what it
    shows.
    """
    grey = looks @ np.array([0.299, 0.587, 0.114])
    low = dctn(grey, axes=(1, 2), norm="ortho")[:, :8, :8].reshape(-1, 64)
    bits = low > np.median(low[:, 1:], axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8").ravel().astype(np.uint64)


def _thumbs(looks: np.ndarray) -> np.ndarray:
    half = LOOK // THUMB
    return looks.reshape(-1, THUMB, half, THUMB, half, 3).mean((2, 4)).round().astype(np.uint8)


def save(index: pd.DataFrame, path: Path) -> None:
    index.to_csv(path, index=False, lineterminator="\n")


def load(path: Path) -> pd.DataFrame:
    """The index with ids exactly as they were: "001", "NA", "1e5" and "" are texts, not numbers or gaps."""
    found = pd.read_csv(path, dtype=COLUMNS, keep_default_na=False)
    if list(found) != list(COLUMNS):
        raise UserError(
            f"{path}: columns {list(found)} were found, {list(COLUMNS)} expected; make prepare FORCE=1 makes it again"
        )
    return found


def choices(index: pd.DataFrame) -> pd.DataFrame:
    """What `like` needs of an index; digests are taken anew from the bytes, and do not compress."""
    return index.drop(columns="sha256")


def like(index: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The rows, groups, folds and hashes of `choices` saved at `path`, with the digests of this index.

    Another version of Pillow hashes otherwise, another scikit-learn makes other folds: a machine that goes on with
    work begun elsewhere must not choose again. Raises UserError when `index` is of other images.
    """
    kinds = {column: kind for column, kind in COLUMNS.items() if column != "sha256"}
    told = pd.read_csv(path, dtype=kinds, keep_default_na=False)
    here = index.set_index("id")
    absent = [name for name in told["id"] if name not in here.index]
    if absent:
        raise UserError(f"{len(absent)} of {len(told)} images of {path.name} are not in the raw files: {first(absent)}")
    rows = here.loc[told["id"]]
    changed = (rows["bytes"].to_numpy() != told["bytes"].to_numpy()) | (
        rows["label"].to_numpy() != told["label"].to_numpy()
    )
    if changed.any():
        raise UserError(
            f"{int(changed.sum())} of {len(told)} images differ from those of {path.name}: {first(told['id'][changed])}"
        )
    return told.assign(sha256=rows["sha256"].to_numpy())[list(COLUMNS)]


def without_bad_images(index: pd.DataFrame, policy: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(kept, bad): the rows to go on with, and every row that cannot be decoded.

    policy "error" refuses unreadable labelled rows, "drop" leaves them out. Test rows always stay.
    """
    bad = index[index["problem"] != ""]
    droppable = (index["problem"] != "") & (index["part"] != "test")
    if policy == "error" and droppable.any():
        some = [f"{row.id} ({row.shard}: {row.problem})" for row in index[droppable].head(3).itertuples()]
        raise UserError(
            f"{droppable.sum():,} training images cannot be read, such as {', '.join(some)}; "
            "mend them, or set prepare.bad_images=drop to go on without them"
        )
    return index[~droppable].reset_index(drop=True), bad


def _look_at(row: Row) -> tuple[dict[str, object], np.ndarray]:
    problem, width, height = "", 0, 0
    look = np.full((LOOK, LOOK, 3), 128, np.uint8)
    try:
        width, height = images.size_of(row.data)
        look = images.decode(row.data, LOOK, "squash")
    except images.BadImage as reason:
        problem = str(reason)
    entry = {
        "id": row.id, "label": row.label, "part": row.part, "shard": row.shard, "place": row.place, "width": width,
        "height": height, "bytes": len(row.data), "sha256": sha256(row.data).hexdigest(), "problem": problem,
    }  # fmt: skip
    return entry, look


def _check(index: pd.DataFrame, classes: int) -> None:
    ids = index["id"]
    odd = ids[[bool(UNWRITABLE.search(one)) for one in ids]]
    if len(odd):
        raise UserError(
            f"{len(odd):,} ids hold control characters or broken text, {first(odd, 3)}; no CSV can carry them"
        )
    doubled = ids[ids.duplicated()].unique()
    if len(doubled):
        parts = index[ids == doubled[0]]["part"].tolist()
        raise UserError(
            f"{len(doubled):,} ids appear more than once, {first(doubled)} ({' and '.join(parts)}); ids must differ"
        )
    labelled = index["part"] != "test"
    outside = labelled & ~index["label"].between(0, classes - 1)
    if outside.any():
        at = index[outside].iloc[0]
        raise UserError(
            f"{outside.sum():,} labels are outside the {classes} classes (0 to {classes - 1}), "
            f"first {at.label} of {at.id!r} in {at.shard}"
        )
    if not (index["part"] == "train").any():
        raise UserError("no training image was found; make download FORCE=1 fetches the raw files again")
