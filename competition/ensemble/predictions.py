"""Predictions travel with their ids and are joined by id, never by position.

`Predictions` is one table of probabilities; `ViewPredictions` keeps every test-time view apart, so that policies can
be searched later without running a network again. Files are .npz without pickle, or CSV.
"""

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import pandas as pd

from competition.artifacts.manifest import atomic_write
from competition.config.errors import UserError

ENTRIES_AT_ONCE = 4_000_000  # probabilities that are checked in one piece
LOCAL_HEADER = 30  # bytes before a file's name in a .zip (APPNOTE 4.3.7)
SUM_TOLERANCE = 5e-3  # float16 probabilities of 104 classes sum to 1 within 1e-3


@dataclass(frozen=True)
class Predictions:
    """ids: (N,) str, unique.  probs: (N, C) float32, finite, not negative, each row sums to 1."""

    ids: np.ndarray
    probs: np.ndarray

    def __post_init__(self) -> None:
        _check(self.ids, self.probs, axes=2)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """(len(ids), C), in the order of `ids`. Refuses ids that are not there."""
        return self.probs[positions(self.ids, ids)]

    def save(self, path: Path) -> None:
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez(file, ids=self.ids.astype(str), probs=self.probs)

    @staticmethod
    def load(path: Path) -> "Predictions":
        with _open(path) as file:
            return Predictions(file["ids"], file["probs"])

    def save_csv(self, path: Path, classes: Sequence[str]) -> None:
        table = pd.DataFrame(self.probs, columns=list(classes))
        table.insert(0, id_column(classes), self.ids)
        with atomic_write(path) as temporary:
            table.to_csv(temporary, index=False)

    @staticmethod
    def load_csv(path: Path, classes: Sequence[str]) -> "Predictions":
        """A column of ids (see `id_column`) and one column per class, by name, in any order."""
        name = id_column(classes)
        table = pd.read_csv(path, dtype={name: str}, keep_default_na=False, na_values={c: [""] for c in classes})
        missing = [c for c in (name, *classes) if c not in table]
        if missing:
            raise UserError(f"{path}: {len(missing)} columns are missing, first {missing[:3]}; found {list(table)[:5]}")
        return Predictions(table[name].to_numpy(str), table[list(classes)].to_numpy(np.float32))


@dataclass(frozen=True)
class ViewPredictions:
    """ids: (N,) str, unique.  views: V names, unique.  probs: (N, V, C) float16, each row of each view sums to 1."""

    ids: np.ndarray
    views: tuple[str, ...]
    probs: np.ndarray

    def __post_init__(self) -> None:
        _check(self.ids, self.probs, axes=3)
        if len(self.views) != self.probs.shape[1] or len(set(self.views)) != len(self.views):
            raise UserError(f"expected {self.probs.shape[1]} different view names, found {list(self.views)}")

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """(len(ids), V, C), in the order of `ids`. Refuses ids that are not there."""
        return self.probs[positions(self.ids, ids)]

    def at(self, ids: np.ndarray) -> "ViewPredictions":
        """The same predictions for `ids` alone, in their order; nothing is copied where they are these already."""
        ids = np.asarray(ids).astype(str)
        return self if np.array_equal(ids, self.ids) else _unchecked(ids, self.views, self.rows(ids))

    def view(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """(n, C) float32, of the row numbers `rows` or of all rows."""
        if name not in self.views:
            raise UserError(f"view '{name}' was not predicted; found {', '.join(self.views)}")
        at = self.views.index(name)
        return self.probs[slice(None) if rows is None else rows, at].astype(np.float32)

    def save(self, path: Path) -> None:
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            views = np.array(self.views, dtype=str)
            np.savez(file, ids=self.ids.astype(str), views=views, probs=self.probs.astype(np.float16))

    @staticmethod
    def load(path: Path, mapped: bool = False) -> "ViewPredictions":
        """mapped: the probabilities stay in the file and are read when they are used (an uncompressed .npz)."""
        with _open(path) as file:
            probs = mapped_array(path, "probs") if mapped else file["probs"]
            loaded = ViewPredictions(file["ids"], tuple(str(v) for v in file["views"]), probs)
        loaded.release()  # the check read all of it
        return loaded

    def release(self) -> None:
        """Give the memory of pages that were read back, where the probabilities are mapped; they are read again."""
        if isinstance(self.probs, np.memmap):
            self.probs._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _unchecked(ids: np.ndarray, views: tuple[str, ...], probs: np.ndarray) -> ViewPredictions:
    """Of rows that were checked before: their ids are unique and their probabilities are valid."""
    made = object.__new__(ViewPredictions)
    for name, value in (("ids", ids), ("views", views), ("probs", probs)):
        object.__setattr__(made, name, value)
    return made


def mapped_array(path: Path, name: str) -> np.ndarray:
    """An array of an uncompressed .npz, mapped to memory. Raises UserError for a compressed one."""
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
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def id_column(classes: Sequence[str]) -> str:
    """The name of the column of ids in a CSV of predictions: id; row_id where a class is called id."""
    name = "id"
    while name in classes:
        name = f"row_{name}"
    return name


def save_scores(path: Path, ids: np.ndarray, scores: np.ndarray) -> None:
    """(N, C) finite numbers that order rows but need not sum to 1: what a blend of ranks gives."""
    if len(ids) != len(scores) or not np.isfinite(scores).all():
        raise UserError(f"{len(ids)} ids and scores of shape {scores.shape}: expected finite scores, a row for each id")
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, ids=np.asarray(ids).astype(str), scores=scores.astype(np.float32))


def load_scores(path: Path, ids: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(ids, scores): as they were saved, or for exactly `ids` in their order."""
    with _open(path) as file:
        have, scores = file["ids"], file["scores"]
    return (have, scores) if ids is None else (ids, scores[positions(have, ids)])


def concatenate_folds(parts: Sequence[ViewPredictions]) -> ViewPredictions:
    """One member's out-of-fold predictions from its fold models: different rows, the same views. Ids may not repeat."""
    _same_views(parts)
    ids = np.concatenate([p.ids for p in parts])
    _refuse_doubled(np.sort(ids.astype(str)))
    return _unchecked(ids, parts[0].views, np.concatenate([p.probs for p in parts]))


def mean_over_folds(parts: Sequence[ViewPredictions]) -> ViewPredictions:
    """One member's test predictions: the plain mean of its fold models, which all saw the same rows (joined by id)."""
    _same_views(parts)
    ids = parts[0].ids
    total = np.zeros(parts[0].probs.shape, np.float32)
    for part in parts:
        if len(part.ids) != len(ids):
            raise UserError(f"fold models predicted {len(part.ids)} and {len(ids)} rows; expected the same test rows")
        total += part.rows(ids)
    return ViewPredictions(ids, parts[0].views, (total / len(parts)).astype(np.float16))


def positions(have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """For each wanted id its place in `have`. A missing or doubled id is refused with its count and first names."""
    have, want = np.asarray(have).astype(str), np.asarray(want).astype(str)
    order = np.argsort(have, kind="stable")
    _refuse_doubled(have[order])
    spot = np.searchsorted(have, want, sorter=order) if len(have) else np.zeros(len(want), int)
    found = order[np.minimum(spot, len(have) - 1)] if len(have) else spot
    missing = want[have[found] != want] if len(have) else want
    if len(missing):
        names = ", ".join(missing[:3])
        raise UserError(
            f"{len(missing)} of {len(want)} ids have no prediction, first {names}; predict these rows again"
        )
    return found


def _refuse_doubled(in_order: np.ndarray) -> None:
    again = in_order[1:][in_order[1:] == in_order[:-1]]
    if len(again):
        raise UserError(f"{len(again)} ids appear more than once, first {', '.join(again[:3])}; expected each id once")


def _check(ids: np.ndarray, probs: np.ndarray, axes: int) -> None:
    if probs.ndim != axes or len(ids) != len(probs) or 0 in probs.shape[1:]:
        raise UserError(
            f"ids {ids.shape} and probabilities {probs.shape} do not match; expected {axes} axes, one row per id"
        )
    _refuse_doubled(np.sort(np.asarray(ids).astype(str)))
    size = max(1, ENTRIES_AT_ONCE // int(np.prod(probs.shape[1:])))
    pieces = [_not_probabilities(probs[start : start + size]) for start in range(0, len(probs), size)]
    bad = np.concatenate(pieces) if pieces else np.zeros(0, bool)
    if bad.any():
        names = ", ".join(np.asarray(ids).astype(str)[bad][:3])
        raise UserError(
            f"{np.count_nonzero(bad)} rows are not probabilities (finite, not negative, sum 1), first {names}; "
            "apply a softmax, or predict these rows again"
        )


def _not_probabilities(probs: np.ndarray) -> np.ndarray:
    """(n, ...) -> (n,) bool: rows with an entry that is not finite or is negative, or a sum that is not 1."""
    # In float32: a float16 sum of 104 classes is itself off by more than the tolerance. The sum of a row with an
    # infinite entry is not finite, and a comparison with NaN is False.
    probs = probs.astype(np.float32)
    with np.errstate(invalid="ignore"):
        good = (probs.min(-1) >= 0) & (np.abs(probs.sum(-1) - 1) <= SUM_TOLERANCE)
    return ~(good if good.ndim == 1 else good.all(-1))


def _same_views(parts: Sequence[ViewPredictions]) -> None:
    if not parts:
        raise UserError("expected the predictions of at least one fold model, found none")
    for part in parts:
        if part.views != parts[0].views:
            raise UserError(f"fold models have different views: {list(part.views)} and {list(parts[0].views)}")


def _open(path: Path) -> np.lib.npyio.NpzFile:
    if not path.exists():
        raise UserError(f"{path} is not there; expected predictions, made by `make predict`")
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} is not a readable .npz of predictions ({error}); make it again") from error
