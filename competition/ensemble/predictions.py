"""Predictions travel with their ids and are joined by id, never by position.

`ViewPredictions` stores every test-time view separately, so that TTA policies can be fitted later without running a network.
Files are .npz without pickle.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted
from competition.ensemble.metrics import TargetKind
from competition.ensemble.mixing import MEAN_OF, mix
from competition.files.manifest import atomic_write

ENTRIES_AT_ONCE = 4_000_000  # probabilities checked per chunk
CHUNK_ENTRIES = 2_000_000  # entries (rows x classes) of one of `chunks`
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
        ids, probs, target = np.asarray(self.ids), self.probs, self.target
        if ids.ndim != 1 or probs.ndim != 3 or len(ids) != len(probs) or 0 in probs.shape[1:]:
            raise UserError(f"ids {ids.shape} and probabilities {probs.shape} do not match; expected (N,), (N, V, C)")
        check_kinds(ids, probs)
        ids = ids.astype(str)
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
            row = probs[bad.argmax()].astype(np.float64)
            first = row[np.isfinite(row).all(-1).argmin()]  # of one view
            values = ", ".join(f"{value:.3g}" for value in first[:4]) + (", ..." if len(first) > 4 else "")
            raise UserError(
                f"{counted(int(bad.sum()), 'row')} without {wanted}, first {', '.join(ids[bad][:3])}; the first holds "
                f"{values} with the sum {first.sum():.3g}: {remedy}, or predict again"
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
        with open_npz(path) as file, named_in_errors(path):
            probs = mapped_array(path, "probs") if mapped else read_array(path, file, "probs")
            target: Any = str(read_array(path, file, "target")) if "target" in file.files else "single"
            views = tuple(map(str, read_array(path, file, "views").ravel()))
            loaded = ViewPredictions(read_array(path, file, "ids"), views, probs, target)
        loaded.release()  # the checks have read the whole file
        return loaded

    def release(self) -> None:
        """Release the memory of pages already read, if the probabilities are mapped; they are read again on access."""
        if isinstance(self.probs, np.memmap):
            self.probs._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def mix_views(
    predictions: ViewPredictions, policy: Mapping[str, float], rows: np.ndarray | slice | None = None
) -> np.ndarray:
    """(n, C) float32: the weighted mean over the views of a policy (name -> weight; they sum to 1).  rows: None = all.

    A single view is returned unchanged.
    """
    parts = [predictions.view(name, rows) for name in policy]
    return parts[0] if len(parts) == 1 else mix(parts, policy.values(), MEAN_OF[predictions.target])


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
    if len(ids) != len(scores) or not np.isfinite(scores).all():
        raise UserError(
            f"{counted(len(ids), 'id')} and scores of shape {scores.shape}: expected finite ones, a row per id"
        )
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, ids=np.asarray(ids).astype(str), scores=scores.astype(np.float32))


def load_scores(path: Path, ids: np.ndarray | None = None, mapped: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Load (ids, scores): as saved, or for `ids` in their order.  mapped: the scores stay in the file of `save_scores`."""
    with open_npz(path) as file, named_in_errors(path):
        stored_ids = read_array(path, file, "ids")
        scores = np.asarray(mapped_array(path, "scores")) if mapped else read_array(path, file, "scores")
        if stored_ids.ndim != 1 or scores.ndim != 2 or len(stored_ids) != len(scores):
            raise UserError(f"ids {stored_ids.shape} and scores {scores.shape} do not match; expected a row per id")
        check_kinds(stored_ids, scores)
    return (stored_ids, scores) if ids is None else (ids, scores[positions(stored_ids, ids)])


def concatenate_folds(parts: Sequence[ViewPredictions]) -> ViewPredictions:
    """Concatenate the out-of-fold predictions of one member's fold models: different rows, the same views."""
    refuse_other_views(parts)
    ids, probs = np.concatenate([p.ids for p in parts]), np.concatenate([p.probs for p in parts])
    return replace(parts[0], ids=ids, probs=probs)


def mean_over_folds(parts: Sequence[ViewPredictions]) -> ViewPredictions:
    """Average the test predictions of one member's fold models, joined by id."""
    refuse_other_views(parts)
    ids = parts[0].ids
    total = np.zeros(parts[0].probs.shape, np.float32)
    for part in parts:
        if len(part.ids) != len(ids):
            raise UserError(f"fold models predicted {len(part.ids)} and {len(ids)} rows; expected the same test rows")
        total += part.at(ids).probs
    mean = (total / len(parts)).astype(parts[0].probs.dtype)
    return replace(parts[0], probs=mean)


def positions(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Position in `ids` of each wanted id.  Raises UserError for missing or duplicate ids, with count and examples."""
    ids, wanted = np.asarray(ids).astype(str), np.asarray(wanted).astype(str)
    _check_unique(ids)
    indices = pd.Index(ids, dtype=object).get_indexer(pd.Index(wanted, dtype=object))
    missing = wanted[indices < 0]
    if len(missing):
        names = ", ".join(missing[:3])
        raise UserError(f"{len(missing)} of {len(wanted)} ids have no prediction, first {names}; predict them again")
    return indices


def _check_unique(ids: np.ndarray) -> None:
    repeated = np.sort(ids[pd.Index(ids, dtype=object).duplicated()])
    if len(repeated):
        raise UserError(f"{counted(len(repeated), 'repeated id')}, first {', '.join(repeated[:3])}; expected each once")


def check_kinds(ids: np.ndarray, values: np.ndarray) -> None:
    """Raise UserError unless ids are text or numbers and values are numbers."""
    ids_type, values_type = np.asarray(ids).dtype, values.dtype
    if ids_type.kind not in "USOiuf" or values_type.kind not in "fiub":
        raise UserError(
            f"ids of type {ids_type} and values of type {values_type} were found, expected text and numbers"
        )


def refuse_other_views(parts: Sequence[ViewPredictions]) -> None:
    """Raise UserError unless the predictions of one member's fold models have the same views."""
    for part in parts:
        if part.views != parts[0].views:
            raise UserError(f"fold models have different views: {list(part.views)} and {list(parts[0].views)}")


def open_npz(path: Path) -> np.lib.npyio.NpzFile:
    if not path.exists():
        raise UserError(f"{path} does not exist; `make predict` creates it")
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
    except Exception as error:  # damaged bytes may cause any exception in zipfile and NumPy
        raise UserError(f"{path} is not a readable .npz of predictions ({error}); create it again") from error
    return file


def read_array(path: Path, file: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """One array of an open .npz.  path: of the file, for the message.  Raises UserError if it cannot be read."""
    try:
        return np.asarray(file[name])
    except Exception as error:  # damaged bytes may cause any exception in zipfile and NumPy
        kind = "'float32'" if name in ("probs", "scores") else "str"
        raise UserError(
            f"{path} is not a readable .npz (array '{name}': {error}); create it again, without pickled objects "
            f"(np.asarray({name}, {kind}))"
        ) from error


def mapped_array(path: Path, name: str) -> np.ndarray:
    """Memory-map one array of an uncompressed .npz. Raises UserError for a compressed one."""
    with ZipFile(path) as archive, path.open("rb") as file:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type != ZIP_STORED:
            raise UserError(f"{path}: {name} is compressed and cannot be mapped; save it with numpy.savez")
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        file.seek(info.header_offset + LOCAL_HEADER + name_length + extra_length)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if 0 in shape:  # an empty file cannot be mapped
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Name the file in every error of its content; its folder names the member and the fold."""
    try:
        yield
    except UserError as error:
        text = str(error)
        raise UserError(text if str(path) in text else f"{path}: {text}") from None
