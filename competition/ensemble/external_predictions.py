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
from competition.ensemble.mixing import mean_over_folds
from competition.ensemble.stored_predictions import IDENTITY, ViewPredictions, errors_of_file, free_name

SAVE = "np.savez(file, ids=ids, probs=probs, classes=names)"


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
    elif declared_digest != rows.folds_digest:
        digests = f"predictions.folds is {declared_digest}, ours are {rows.folds_digest}"
        notes = [f"{OTHER_FOLDS} ({digests}): its models may have learned from duplicates of the rows they predict"]
    held_out, *others = _read(oof, rows, rows.train_ids)
    if others:
        raise UserError(f"{oof} has the array 'folds'; expected one out-of-fold prediction per training row")
    if not len(rows.test_ids):
        # Cross-validation only: the leak check, which compares with test rows, is not possible.
        unchecked = f"{LEAK_UNCHECKED} not checked, because there are no test rows"
        empty = ViewPredictions(rows.test_ids, held_out.views, held_out.probs[:0], rows.target)
        return ExternalPredictions(held_out, empty, (*notes, unchecked))
    by_fold = [part for file in test for part in _read(file, rows, rows.test_ids)]
    mean = mean_over_folds(by_fold)
    if rows.target != "single":
        notes.append(f"{LEAK_UNCHECKED} only checked for single labels")
    else:
        member = confidence(held_out, by_fold if len(by_fold) > 1 else (), mean)
        notes += leak_notes(held_out, rows.labels, member, own)
    return ExternalPredictions(held_out, mean, tuple(notes))


def _read(path: Path, rows: OurRows, ids: np.ndarray) -> list[ViewPredictions]:
    """The rows of `ids`, in their order, as one table or one per fold model. Every UserError names the file.

    ids: those of the training rows or of the test rows; the file may have both.
    """
    if path.suffix not in (".csv", ".npz"):
        raise UserError(f"{path}: expected .csv or .npz; {SAVE} writes an .npz")
    with errors_of_file(path):
        tables = (_read_csv if path.suffix == ".csv" else _read_npz)(path, rows.classes, rows.target)
        (part, other), others = ("training", "test"), rows.test_ids
        if ids is rows.test_ids:
            (part, other), others = (other, part), rows.train_ids
        of_file = tables[0].ids
        if len(others) and not np.isin(ids, of_file).any() and np.isin(others, of_file).all():
            found = f"expected the ids of the {part} rows, found those of the {other} rows"
            raise UserError(f"{found}: are oof and test exchanged?")
        return [table.at(ids) for table in tables]


def _read_csv(path: Path, classes: Sequence[str], target: TargetKind) -> list[ViewPredictions]:
    """A column of ids (see `free_name`) and one column per class, by name, in any order."""
    name = free_name("id", classes)
    table = pd.read_csv(path, dtype={name: str}, keep_default_na=False, na_values={c: [""] for c in classes})
    expected = {name, *classes}
    if differing := sorted({*table.columns} ^ expected):
        remedy = "remove them" if expected < {*table.columns} else "rename the columns"
        if {*table.columns} < expected:
            remedy = "they are missing; a class that a model does not know gets a column of zeros"
        raise UserError(
            f"{path} has the columns {first_few(table.columns)}; expected {name!r} and one for each class name, separated by commas "
            f"(to_csv without sep and decimal); they differ in {first_few(differing)}: {remedy}"
        )
    probs = table[list(classes)].to_numpy(np.float32)
    return [ViewPredictions(table[name].to_numpy(str), (IDENTITY,), probs[:, None], target)]


def _read_npz(path: Path, classes: Sequence[str], target: TargetKind) -> list[ViewPredictions]:
    """One table, or one per fold model."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    wanted = {"ids", "probs", "classes"} if len(classes) > 1 else {"ids", "probs"}
    if not wanted <= arrays.keys():
        raise UserError(
            f"{path}: expected the arrays {', '.join(sorted(wanted))}, found {', '.join(sorted(arrays)) or 'none'}: {SAVE}, where "
            "names are the classes of the columns, by which they are joined"
        )
    ids, probs = arrays["ids"], arrays["probs"]
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
            f"{path} has the classes {first_few(columns)}; expected the {len(classes)} of the competition, {first_few(classes)}; they "
            f"differ in {first_few(sorted({*columns} ^ {*classes}))}; a class that a model does not know gets a column of zeros"
        )
    # As exact as they are: float16 makes a confident network's probabilities 0 and 1, and ties of what an AUC must order.
    dtype = np.float16 if probs.dtype == np.float16 else np.float32
    probs = probs[..., [columns.index(name) for name in classes]].astype(dtype)
    tables = probs if probs.ndim == 3 else probs[None]
    return [ViewPredictions(ids.astype(str), (IDENTITY,), table[:, None], target) for table in tables]
