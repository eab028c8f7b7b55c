"""External predictions: files with the predictions of members trained elsewhere (PyTorch, fastai, AutoGluon, ...).

A CSV has a column of ids (`free_name`) and one column per class name. An .npz has `ids` (N,), `classes` (C,), the names of its
columns in any order, and `probs` (N, C). Multi-label: each probability from 0 to 1. Regression: one column of numbers, (N,) or
(N, 1), which needs no `classes`.
Test predictions are the mean over fold models, or one file per fold model, or one .npz with `folds` (K,) and `probs`
(K, N, C). The blend uses the mean; single fold models allow a sharper leak check (`external_check`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.ensemble.external_check import (
    FOLDS_UNKNOWN,
    LEAK_UNCHECKED,
    OTHER_FOLDS,
    Confidence,
    confidence,
    leak_notes,
)
from competition.ensemble.metrics import TargetKind
from competition.ensemble.predictions import (
    IDENTITY,
    ViewPredictions,
    check_kinds,
    free_name,
    mean_over_folds,
    named_in_errors,
    open_npz,
    read_array,
)

SHORTEST_DIGEST = 8  # digits of predictions.folds that count as the whole digest


@dataclass(frozen=True)
class ExternalPredictions:
    """oof: in the order of the training rows.  test: in the order of the test rows.  notes: warnings for the user."""

    oof: ViewPredictions
    test: ViewPredictions
    notes: tuple[str, ...]


@dataclass(frozen=True)
class OurRows:
    """The rows that external predictions must be of."""

    classes: Sequence[str]
    train_ids: np.ndarray  # (N,) str
    test_ids: np.ndarray  # (T,) str
    labels: np.ndarray  # (N,) int of the training rows
    folds_digest: str  # sha256 of our folds
    target: TargetKind = "single"  # the leak check compares confidences, so it is only made for classes


def load_external(
    oof: Path, test: Sequence[Path], rows: OurRows, declared_digest: str, own: Sequence[Confidence] = ()
) -> ExternalPredictions:
    """Load and check external predictions, and sort them by our ids.

    test: one file, or one per fold model.  declared_digest: sha256 of the folds the member was trained with; "" = unknown.
    own: confidence of the members trained here.
    """
    notes = []
    if not declared_digest:
        ours = f"if they are those of `make folds`, set predictions.folds: {rows.folds_digest}"
        notes = [f"{FOLDS_UNKNOWN}, so nothing says that the rows were held out; {ours}"]
    elif len(declared_digest) < SHORTEST_DIGEST or not rows.folds_digest.startswith(declared_digest):
        digests = f"predictions.folds is {declared_digest}, ours are {rows.folds_digest}"
        notes = [f"{OTHER_FOLDS} ({digests}): its models may have learned from duplicates of the rows they predict"]
    (held_out, *others), of_oof = _read(oof, rows, rows.train_ids)
    if others:
        raise UserError(f"{oof} has the array 'folds'; expected one out-of-fold prediction per training row")
    notes += of_oof
    if not len(rows.test_ids):
        # Cross-validation only: the leak check, which compares with test rows, is not possible.
        unchecked = f"{LEAK_UNCHECKED} not checked, because there are no test rows"
        empty = ViewPredictions(rows.test_ids, held_out.views, held_out.probs[:0], rows.target)
        return ExternalPredictions(held_out, empty, (*notes, unchecked))
    by_fold = list[ViewPredictions]()
    for file in test:
        parts, of_test = _read(file, rows, rows.test_ids)
        by_fold, notes = by_fold + parts, notes + of_test
    mean = mean_over_folds(by_fold)
    if rows.target != "single":
        notes.append(f"{LEAK_UNCHECKED} only checked for single labels")
    else:
        member = confidence(held_out, by_fold if len(by_fold) > 1 else (), mean)
        notes += leak_notes(held_out, rows.labels, member, own)
    return ExternalPredictions(held_out, mean, tuple(notes))


def stored_ids(path: Path, classes: Sequence[str]) -> np.ndarray:
    """(N,) str: the ids of a file; its probabilities are not checked. Raises UserError if the ids cannot be read."""
    if path.suffix == ".npz":
        with open_npz(path) as file:
            return read_array(path, file, "ids").astype(str)
    name = free_name("id", classes)
    try:
        return pd.read_csv(path, usecols=[name], dtype=str, keep_default_na=False)[name].to_numpy(str)
    except (OSError, ValueError) as error:  # those of the parser and of the encoding are ValueErrors
        raise UserError(f"{path} is not a CSV file with a column {name} ({error}); write it again") from None


def _read(path: Path, rows: OurRows, ids: np.ndarray) -> tuple[list[ViewPredictions], list[str]]:
    """(the rows of `ids`, in their order, as one table or one per fold model, notes). Every UserError names the file.

    ids: those of the training rows or of the test rows; the file may have both.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist; expected external predictions (.csv or .npz)")
    if path.suffix not in (".csv", ".npz"):
        raise UserError(f"{path}: expected .csv or .npz")
    with named_in_errors(path):
        tables = (_read_csv if path.suffix == ".csv" else _read_npz)(path, rows.classes, rows.target)
        stored = tables[0].ids.astype(str)
        if not len(stored):
            raise UserError(f"{path} has no rows; expected one for each of {counted(len(ids), 'id')}")
        if len(ids) and not np.isin(ids, stored).any():
            problem = f"has {first_few(stored, 3)}; expected {first_few(ids, 3)}"
            for part, others, key in (("training", rows.train_ids, "oof"), ("test", rows.test_ids, "test")):
                if len(others) and np.isin(others, stored).all():
                    problem = f"has those of the {part} rows, so it belongs to predictions.{key}"
            raise UserError(f"{path} has none of the {counted(len(ids), 'id')} that it must predict: it {problem}")
        unknown = stored[~np.isin(stored, [*rows.train_ids, *rows.test_ids])]
        note = f"{path}: {counted(len(unknown), 'unknown id')} not used, {first_few(unknown, 3)}"
        return [table.at(ids) for table in tables], [note] if len(unknown) else []


def _read_csv(path: Path, classes: Sequence[str], target: TargetKind) -> list[ViewPredictions]:
    """A column of ids (see `free_name`) and one column per class, by name, in any order."""
    name = free_name("id", classes)
    try:
        table = pd.read_csv(path, dtype={name: str}, keep_default_na=False, na_values={c: [""] for c in classes})
        differing = sorted({*table.columns} ^ {name, *classes})
        if not differing and not isinstance(table.index, pd.RangeIndex):  # a nameless first column
            raise ValueError("its rows have more cells than its header has columns")
        probs = table.reindex(columns=list(classes)).to_numpy(np.float32)
    except (ValueError, TypeError, OverflowError) as error:  # those of the parser and of the encoding are ValueErrors
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is not a CSV file in UTF-8 with numbers in the columns of the classes ({reason}); write it again with "
            "to_csv(path, index=False)"
        ) from None
    if differing:
        raise UserError(
            f"{path} has the columns {first_few(table.columns)}; expected {name!r} and one for each class name, separated by commas "
            f"(to_csv without sep and decimal); they differ in {first_few(differing)}: rename the columns"
        )
    return [ViewPredictions(table[name].to_numpy(str), (IDENTITY,), probs[:, None], target)]


def _read_npz(path: Path, classes: Sequence[str], target: TargetKind) -> list[ViewPredictions]:
    """One table, or one per fold model."""
    with open_npz(path) as file:
        arrays = {name: read_array(path, file, name) for name in file.files}
    wanted = {"ids", "probs", "classes"} if len(classes) > 1 else {"ids", "probs"}
    if not wanted <= arrays.keys():
        raise UserError(
            f"{path}: expected the arrays {', '.join(sorted(wanted))}, found {', '.join(sorted(arrays)) or 'none'}; classes are the "
            "names of the columns, by which they are joined: np.savez(..., classes=names)"
        )
    ids, probs = arrays["ids"], arrays["probs"]
    check_kinds(ids, probs)
    columns = [str(name) for name in arrays.get("classes", np.array(classes)).ravel()]
    of_folds = (arrays["folds"].size,) if "folds" in arrays else ()
    if target == "regression" and probs.shape in (ids.shape, (*of_folds, *ids.shape)):
        probs = probs[..., None]  # as `predict` of scikit-learn gives them, of one model or of K
    shapes = {(*folds, *ids.shape, len(columns)) for folds in ((), of_folds)}  # with folds, it may also be their mean
    if ids.ndim != 1 or probs.shape not in shapes or 0 in probs.shape[:-2]:
        raise UserError(
            f"{path}: probs has the shape {probs.shape}, for ids {ids.shape} and {counted(len(columns), 'class', 'classes')}; "
            "expected (N, C), or (K, N, C) of K fold models, with the array 'folds' (K,)"
        )
    if sorted(columns) != sorted(classes):
        raise UserError(
            f"{path} has the classes {first_few(columns)}; expected the {len(classes)} of the competition, {first_few(classes)}; a "
            "class that a model does not know gets a column of zeros"
        )
    # As exact as they are: float16 makes a confident network's probabilities 0 and 1, and ties of what an AUC must order.
    dtype = np.float16 if probs.dtype == np.float16 else np.float32
    probs = probs[..., [columns.index(name) for name in classes]].astype(dtype)
    tables = probs if probs.ndim == 3 else probs[None]
    return [ViewPredictions(ids.astype(str), (IDENTITY,), table[:, None], target) for table in tables]
