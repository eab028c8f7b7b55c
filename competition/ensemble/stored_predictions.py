"""Predictions as they are stored: with their ids, by which they are joined, never by position.

`ViewPredictions` stores every test-time view separately, so that TTA policies can be fitted later without running a network.
Files are .npz without pickle.
"""

import mmap
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted
from competition.ensemble.metrics import TargetKind
from competition.files.manifest import atomic_write

ENTRIES_AT_ONCE = 4_000_000  # probabilities checked per chunk
CHUNK_ENTRIES = 2_000_000  # entries (rows x classes) of one of `chunks`
MAPPED_BYTES = 1 << 28  # of a member's probabilities: from here on a blend reads them from a file
LOCAL_HEADER = 30  # bytes before a file's name in a .zip (APPNOTE 4.3.7)
IDENTITY = "identity"  # the view of the untransformed image, the only one of external predictions
# How our models' predictions are stored: float16 where rows sum to 1; float32 for values of any size, and because float16
# rounds 0.9998 to 1.
STORED_AS: dict[TargetKind, type[np.floating[Any]]] = {
    "single": np.float16,
    "multi": np.float32,
    "regression": np.float32,
}
SUM_TOLERANCE = 5e-3  # float16 probabilities of 104 classes sum to 1 within 1e-3

WANTED = {  # what a row must be -> how to get there
    "single": ("probabilities (finite, not negative, sum 1)", "divide each row by its sum, apply a softmax to logits"),
    "multi": ("probabilities of independent labels (finite, 0 to 1)", "apply a sigmoid to logits"),
    "regression": ("finite numbers", "remove NaN and infinity"),
}


@dataclass(frozen=True)
class ViewPredictions:
    """ids: (N,) str, unique.  views: V names, unique.  probs: (N, V, C), each row of each view sums to 1 (see `target`)."""

    ids: np.ndarray
    views: tuple[str, ...]
    probs: np.ndarray
    target: TargetKind = "single"  # multi: each probability stands for itself, 0 to 1 | regression: C is 1, any number

    def __post_init__(self) -> None:
        ids, probs, target = np.asarray(self.ids).astype(str), self.probs, self.target
        if ids.ndim != 1 or probs.ndim != 3 or len(ids) != len(probs) or 0 in probs.shape[1:]:
            raise UserError(f"ids {ids.shape} and probabilities {probs.shape} do not match; expected (N,), (N, V, C)")
        _check_unique(ids)
        bad, size = np.zeros(len(probs), bool), max(1, ENTRIES_AT_ONCE // int(np.prod(probs.shape[1:])))
        for start in range(0, len(probs), size):
            part = probs[start : start + size]
            if target == "single":
                # In float32: a float16 sum of 104 classes is itself off by more than the tolerance. The sum of a row with an
                # infinite entry is not finite, and a comparison with NaN is False.
                part = part.astype(np.float32)
                with np.errstate(invalid="ignore"):
                    valid = (part.min(-1) >= 0) & (np.abs(part.sum(-1) - 1) <= SUM_TOLERANCE)
            else:
                valid = np.isfinite(part) if target == "regression" else (part >= 0) & (part <= 1)
            bad[start : start + size] = ~valid.reshape(len(part), -1).all(1)
        if bad.any():
            wanted, remedy = WANTED[target]
            if not np.isfinite(probs[bad]).all():
                remedy = WANTED["regression"][1]
            raise UserError(
                f"{counted(int(bad.sum()), 'row')} without {wanted}, first {', '.join(ids[bad][:3])}: {remedy}, or predict again"
            )
        if len(self.views) != self.probs.shape[1] or len(set(self.views)) != len(self.views):
            raise UserError(f"expected {self.probs.shape[1]} different view names, found {list(self.views)}")

    def at(self, ids: np.ndarray) -> "ViewPredictions":
        """The predictions of `ids`, in their order; returns self if they are the same. Raises UserError for missing ids."""
        ids = np.asarray(ids).astype(str)
        if np.array_equal(ids, self.ids):
            return self
        return replace(self, ids=ids, probs=self.probs[positions(self.ids, ids)])

    def view(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """(n, C) float32, of the row numbers `rows` or of all rows."""
        if name not in self.views:
            raise UserError(f"view '{name}' was not predicted; found {', '.join(self.views)}")
        index = self.views.index(name)
        return self.probs[slice(None) if rows is None else rows, index].astype(np.float32)

    def save(self, path: Path) -> None:
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            views = np.array(self.views, dtype=str)
            target = {} if self.target == "single" else {"target": np.array(self.target)}
            np.savez(file, ids=self.ids.astype(str), views=views, probs=self.probs, **target)  # type: ignore[arg-type]

    @staticmethod
    def load(path: Path, mapped: bool = False) -> "ViewPredictions":
        """mapped: memory-map the probabilities instead of reading them; needs an uncompressed .npz."""
        with errors_of_file(path), np.load(path, allow_pickle=False) as file:
            probs = mapped_array(path, "probs") if mapped else file["probs"]
            target: Any = str(file["target"]) if "target" in file.files else "single"
            loaded = ViewPredictions(file["ids"], tuple(map(str, file["views"].ravel())), probs, target)
        loaded.release()  # the checks have read the whole file
        return loaded

    def release(self) -> None:
        """Release the memory of pages already read, if the probabilities are mapped; they are read again on access."""
        if isinstance(self.probs, np.memmap):
            self.probs._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """Slices of consecutive rows, each of at most CHUNK_ENTRIES entries, that cover all rows; at least one slice."""
    size = max(1, CHUNK_ENTRIES // classes)
    return (slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size))


def free_name(name: str, classes: Sequence[str]) -> str:
    """Name of a column beside those of the classes in a table of predictions: id, or row_id if a class is named id."""
    while name in classes:
        name = f"row_{name}"
    return name


def save_scores(path: Path, ids: np.ndarray, scores: np.ndarray) -> None:
    """Save (N, C) finite scores, whose rows need not sum to 1 (labels that do not exclude each other, or a regression)."""
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, ids=np.asarray(ids).astype(str), scores=scores.astype(np.float32))


def load_scores(path: Path, ids: np.ndarray | None = None, mapped: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Load (ids, scores): as saved, or for `ids` in their order.  mapped: the scores stay in the file of `save_scores`."""
    with errors_of_file(path), np.load(path, allow_pickle=False) as file:
        stored_ids = file["ids"]
        scores = np.asarray(mapped_array(path, "scores")) if mapped else file["scores"]
        return (stored_ids, scores) if ids is None else (ids, scores[positions(stored_ids, ids)])


def concatenate_folds(parts: Sequence[ViewPredictions]) -> ViewPredictions:
    """Concatenate the out-of-fold predictions of one member's fold models: different rows, the same views."""
    ids, probs = np.concatenate([p.ids for p in parts]), np.concatenate([p.probs for p in parts])
    return replace(parts[0], ids=ids, probs=probs)


def in_order_of(ids: np.ndarray, parts: Sequence[ViewPredictions], folder: Path) -> ViewPredictions:
    """The rows of `parts`, which are different rows under the same views, in the order of `ids`.  Raises UserError for missing ids.

    From MAPPED_BYTES on the probabilities lie in a file without a name in `folder`, which goes with the process, if the disk has
    room for it: so the predictions of many members need not fit into memory.
    """
    order = positions(np.concatenate([part.ids for part in parts]), ids)
    shape, dtype = (len(ids), *parts[0].probs.shape[1:]), parts[0].probs.dtype
    size = int(np.prod(shape)) * dtype.itemsize
    # Writing to a mapped page for which the disk has no room would end the process.
    if size < MAPPED_BYTES or shutil.disk_usage(folder).free < 2 * size:
        probs = np.empty(shape, dtype)
    else:
        with tempfile.TemporaryFile(dir=folder) as file:
            probs = np.memmap(file, dtype, "w+", shape=shape)
    start = 0
    for part in parts:
        own = np.flatnonzero((order >= start) & (order < start + len(part.ids)))
        for piece in chunks(len(own), int(np.prod(shape[1:]))):
            probs[own[piece]] = part.probs[order[own[piece]] - start]
        part.release()
        start += len(part.ids)
    return replace(parts[0], ids=ids, probs=probs)


def positions(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Position in `ids` of each wanted id.  Raises UserError for missing or duplicate ids, with count and examples."""
    ids, wanted = np.asarray(ids).astype(str), np.asarray(wanted).astype(str)
    _check_unique(ids)
    indices = pd.Index(ids, dtype=object).get_indexer(pd.Index(wanted, dtype=object))
    missing = wanted[indices < 0]
    if len(missing):
        names, others = ", ".join(missing[:3]), ids[~np.isin(ids, wanted)]
        remedy = f"there are other ids, first {', '.join(others[:3])}" if len(others) else "predict them again"
        if np.isin([name.lstrip("0") or "0" for name in missing], others).all():
            remedy += '; they are without the leading zeros: write ids as text (pandas: dtype={"id": str})'
        raise UserError(f"{len(missing)} of {len(wanted)} ids have no prediction, first {names}; {remedy}")
    return indices


def _check_unique(ids: np.ndarray) -> None:
    repeated = np.sort(ids[pd.Index(ids, dtype=object).duplicated()])
    if len(repeated):
        raise UserError(f"{counted(len(repeated), 'repeated id')}, first {', '.join(repeated[:3])}; expected each once")


def mapped_array(path: Path, name: str) -> np.ndarray:
    """Memory-map one array of an uncompressed .npz."""
    with ZipFile(path) as archive, path.open("rb") as file:
        info = archive.getinfo(f"{name}.npy")
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        file.seek(info.header_offset + LOCAL_HEADER + name_length + extra_length)
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if 0 in shape:  # an empty file cannot be mapped
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


@contextmanager
def errors_of_file(path: Path) -> Iterator[None]:
    """Raise every error of a file of predictions as a UserError with its path; its folder names the member and the fold."""
    try:
        yield
    except UserError as error:
        text = str(error)
        raise UserError(text if str(path) in text else f"{path}: {text}") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; `make predict` creates it") from None
    except Exception as error:  # damaged bytes may cause any exception in zipfile, NumPy and pandas
        raise UserError(
            f"{path} is not a readable {path.suffix} of predictions ({' '.join(str(error).split())}); create it again: an .npz without "
            "pickled objects (np.asarray(ids, str)), or a CSV in UTF-8 with numbers by to_csv(path, index=False)"
        ) from error
