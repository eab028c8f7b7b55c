"""The index: one row per image with label, location, digests and fold. Later stages join by its ids."""

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.files import image_codec as images
from competition.prepare.adapter_types import Row

COLUMNS = {
    "id": str, "label": int, "part": str, "shard": str, "place": int, "width": int, "height": int, "bytes": int,
    "sha256": str, "phash": str, "problem": str, "group": int, "fold": int,
}  # fmt: skip
NO_IMAGE = "no image"  # the problem of rows that a table names without images
THUMB = 16  # side of a thumbnail, pixels
LOOK = 32  # side of the input of the perceptual hash, pixels
CHUNK = 512  # images in memory at once
Progress = Callable[[int, int], None]


def build(rows: Iterable[Row], classes: int, progress: Progress = lambda *_: None) -> tuple[pd.DataFrame, np.ndarray]:
    """Return (index, thumbs): all rows in order, with digests and sizes; thumbs (N, 16, 16, 3) uint8, grey if unreadable.

    classes: the number of label numbers (Competition.label_count).
    `group` is the row's own number and `fold` is -1; duplicates.merged and folds.assign replace them. Decoding uses
    threads, because Pillow and hashlib release the GIL. `progress` gets (rows so far, 0): the total is unknown.
    """
    entries: list[dict[str, object]] = []
    thumbs: list[np.ndarray] = []
    source = iter(rows)
    with ThreadPoolExecutor() as pool:
        while chunk := list(islice(source, CHUNK)):
            facts, decoded = zip(*pool.map(_inspect, chunk), strict=True)
            looks = np.stack(decoded)
            hashes = perceptual_hash(looks)
            entries += [{**fact, "phash": f"{value:016x}"} for fact, value in zip(facts, hashes, strict=True)]
            half = LOOK // THUMB
            cells = looks.reshape(-1, THUMB, half, THUMB, half, 3)
            thumbs.append(cells.mean((2, 4)).round().astype(np.uint8))
            progress(len(entries), 0)
    if not any(entry["part"] == "train" for entry in entries):
        raise UserError("no training image was found; make download FORCE=1 fetches the raw files again")
    index = pd.DataFrame(entries)
    index["group"] = np.arange(len(index))
    index["fold"] = -1
    require_different_ids(index["id"])
    outside = (index["part"] != "test") & ~index["label"].between(0, classes - 1)
    if outside.any():
        example = index[outside].iloc[0]
        raise UserError(
            f"{counted(int(outside.sum()), 'label')} outside the {counted(classes, 'class', 'classes')} (0 to {classes - 1}), "
            f"first {example.label} of {example.id!r} in {example.shard}"
        )
    return index[list(COLUMNS)], np.concatenate(thumbs)


def require_different_ids(ids: pd.Series) -> None:
    """Raise UserError if rows have the same id."""
    doubled = ids[ids.duplicated()].unique()
    if len(doubled):
        raise UserError(
            f"{counted(len(doubled), 'id')} of several rows of the tables, {first_few(doubled)}; ids must differ: remove rows that "
            "are there twice, and rename ids of different images"
        )


def perceptual_hash(looks: np.ndarray) -> np.ndarray:
    """Return (N,) uint64: which of the 64 lowest frequencies of the grey image are above their median (pHash, Zauner 2010).

    looks: (N, 32, 32, 3) uint8. The constant term, the brightness, is excluded from the median.
    """
    from scipy.fft import dctn  # a quarter of the time that a light command needs to start

    grey = looks @ np.array([0.299, 0.587, 0.114])
    low = dctn(grey, axes=(1, 2), norm="ortho")[:, :8, :8].reshape(-1, 64)
    bits = low > np.median(low[:, 1:], axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8").ravel().astype(np.uint64)


def save(index: pd.DataFrame, path: Path) -> None:
    index.to_csv(path, index=False, lineterminator="\n")


def load(path: Path) -> pd.DataFrame:
    """Read an index. Ids keep their text: "001", "NA", "1e5" and "" are neither numbers nor missing values."""
    index = pd.read_csv(path, dtype=COLUMNS, keep_default_na=False)
    if list(index) != list(COLUMNS):
        raise UserError(f"{path}: columns {list(index)} instead of {list(COLUMNS)}; make prepare FORCE=1 rebuilds it")
    return index


def folds_from(index: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the rows, groups, folds and hashes of the index saved at `path` without sha256, with the digests of this index.

    Other versions of Pillow compute other hashes, and of scikit-learn other folds, so a machine that continues the work
    of another one must reuse its choices. Raises UserError if `index` has other images.
    """
    kinds = {column: kind for column, kind in COLUMNS.items() if column != "sha256"}
    saved = pd.read_csv(path, dtype=kinds, keep_default_na=False)
    by_id = index.set_index("id")
    absent = [row_id for row_id in saved["id"] if row_id not in by_id.index]
    if absent:
        raise UserError(f"{len(absent)} of {len(saved)} images of {path.name} are not in raw/: {first_few(absent)}")
    rows = by_id.loc[saved["id"]]
    changed = saved["id"][(rows[["bytes", "label"]].to_numpy() != saved[["bytes", "label"]].to_numpy()).any(axis=1)]
    if len(changed):
        raise UserError(f"{len(changed)} of {len(saved)} images differ from those of {path.name}: {first_few(changed)}")
    return saved.assign(sha256=rows["sha256"].to_numpy())[list(COLUMNS)]


def without_bad_images(index: pd.DataFrame, policy: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (usable, bad): the rows to continue with, and all rows that cannot be decoded.

    policy "error" raises UserError for unreadable labelled rows, "drop" removes them. Test rows are always usable.
    """
    is_bad = ~index["problem"].isin(["", NO_IMAGE])
    bad, droppable = index[is_bad], is_bad & (index["part"] != "test")
    if policy == "error" and droppable.any():
        examples = [f"{row.id} ({row.shard}: {row.problem})" for row in index[droppable].head(3).itertuples()]
        raise UserError(
            f"{counted(int(droppable.sum()), 'training image')} cannot be read, such as {', '.join(examples)}; repair them, or set "
            "prepare.bad_images=drop in the parameter file to continue without them"
        )
    return index[~droppable].reset_index(drop=True), bad


def has_images(index: pd.DataFrame) -> bool:
    """False if the rows are known by a table alone."""
    return not (index["problem"] == NO_IMAGE).any()


def require_images(index: pd.DataFrame, members: Collection[str]) -> None:
    """Raise UserError if the rows have no images and members shall be trained."""
    if members and not has_images(index):
        raise UserError(
            f"no image file was found for the rows of the table, and {first_few(members)} would be trained on images: add the image files "
            "to competition.source, or state `members` with predictions made elsewhere alone, whose files `make folds` does not need yet "
            "(docs/external_predictions.md)"
        )


def _inspect(row: Row) -> tuple[dict[str, object], np.ndarray]:
    problem, width, height = "", 0, 0
    look = np.full((LOOK, LOOK, 3), 128, np.uint8)
    try:
        if not row.shard:
            raise images.BadImage(NO_IMAGE)
        width, height = images.size_of(row.data)
        look = images.decode(row.data, LOOK, "squash")
    except images.BadImage as reason:
        problem = str(reason)
    entry = {name: getattr(row, name) for name in ("id", "label", "part", "shard", "place")}
    facts = {"bytes": len(row.data), "sha256": sha256(row.data).hexdigest(), "problem": problem}
    return {**entry, "width": width, "height": height, **facts}, look
