"""External predictions: files with the predictions of members trained elsewhere (PyTorch, fastai, AutoGluon, ...).

A CSV has a column of ids (Predictions.load_csv) and one column per class name. An .npz has `ids` (N,), `classes` (C,), the
names of its columns in any order, and `probs` (N, C), or also `views` and `probs` (N, V, C). Multi-label: each probability from
0 to 1. Regression: one column of numbers, (N,) or (N, 1), which needs no `classes`.
Test predictions are the mean over fold models, or one file per fold model, or one .npz with `folds` (K,) and `probs`
(K, N, C) or (K, N, V, C). The blend uses the mean; single fold models allow a sharper leak check (`external_check`).
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
    NanRows,
    Predictions,
    ViewPredictions,
    check_kinds,
    free_name,
    mean_over_folds,
    named_in_errors,
    open_npz,
    read_array,
)

SINGLE_VIEW = "given"  # name of the single view of predictions without views

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
    folds: int = 0  # K of our folds; 0 = unknown
    fold_of_row: np.ndarray | None = None  # (N,) int, of the training rows

    def fold_of(self, ids: np.ndarray) -> str:
        """ " (all rows of fold 2)" if these are its ids and no others, else ""."""
        folds = () if self.fold_of_row is None else np.unique(self.fold_of_row)
        same = [fold for fold in folds if set(self.train_ids[self.fold_of_row == fold]) == set(ids)]
        return f" (all rows of fold {same[0]})" if same else ""


def load_external(
    oof: Path, test: Path | Sequence[Path], rows: OurRows, declared_digest: str, own: Sequence[Confidence] = ()
) -> ExternalPredictions:
    """Load and check external predictions, and sort them by our ids.

    test: one file, or one per fold model.  declared_digest: sha256 of the folds the member was trained with; "" = unknown.
    own: confidence of the members trained here.
    """
    target, test_ids = rows.target, rows.test_ids
    notes = []
    if not declared_digest:
        notes = [
            f"{FOLDS_UNKNOWN}: it cannot be verified that the out-of-fold rows were held out; "
            f"if the folds are those of `make folds`, set predictions.folds: {rows.folds_digest}"
        ]
    elif len(declared_digest) < SHORTEST_DIGEST or not rows.folds_digest.startswith(declared_digest):
        notes = [
            f"{OTHER_FOLDS} (predictions.folds is {declared_digest}, ours are {rows.folds_digest}): rows and their "
            "duplicates may have been trained on by the models that predict them, so honest scores may be optimistic"
        ]
    test_files = [test] if isinstance(test, Path) else list(test)
    oof_parts, of_oof = _read(oof, rows, rows.train_ids)
    notes += of_oof
    if len(oof_parts) > 1:
        raise UserError(f"{oof} has the array 'folds'; expected one out-of-fold prediction per training row")
    if not len(test_ids):  # cross-validation only, where the leak check, which compares with test rows, is not possible
        empty = ViewPredictions(test_ids, oof_parts[0].views, oof_parts[0].probs[:0], target)
        unchecked = f"{LEAK_UNCHECKED} not checked, because there are no test rows"
        return ExternalPredictions(oof_parts[0], empty, (*notes, unchecked))
    by_fold = list[ViewPredictions]()
    for file in test_files:
        parts, of_test = _read(file, rows, test_ids)
        by_fold, notes = by_fold + parts, notes + of_test
    for part in by_fold:
        if part.views != oof_parts[0].views:
            raise UserError(f"{oof} has views {list(oof_parts[0].views)}, the test predictions have {list(part.views)}")
    if declared_digest and 1 < len(by_fold) != rows.folds > 0:
        notes.append(
            f"test predictions of {len(by_fold)} fold models, and there are {rows.folds} folds: their mean is used; "
            "predictions.test should have those of every fold model"
        )
    mean = mean_over_folds(by_fold) if len(by_fold) > 1 else by_fold[0]
    if target != "single":
        unchecked = f"{LEAK_UNCHECKED} only checked for single labels"
        return ExternalPredictions(oof_parts[0], mean, (*notes, unchecked))
    member = confidence(oof_parts[0], by_fold if len(by_fold) > 1 else (), mean)
    return ExternalPredictions(oof_parts[0], mean, (*notes, *leak_notes(oof_parts[0], rows.labels, member, own)))


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
        try:
            if path.suffix == ".csv":
                csv = Predictions.load_csv(path, rows.classes, rows.target)
                tables = [ViewPredictions(csv.ids, (SINGLE_VIEW,), csv.probs[:, None], rows.target)]
            else:
                tables = _read_npz(path, rows.classes, rows.target)
        except NanRows as error:
            raise UserError(f"{error}{rows.fold_of(error.ids)}") from None
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


def _read_npz(path: Path, classes: Sequence[str], target: TargetKind) -> list[ViewPredictions]:
    with open_npz(path) as file:
        arrays = {name: read_array(path, file, name) for name in file.files}
    if not {"ids", "probs"} <= arrays.keys():
        wanted = "'ids', 'probs' and 'classes'" if len(classes) > 1 else "'ids' and 'probs'"
        raise UserError(f"{path}: expected the arrays {wanted}, found {sorted(arrays)}")
    lists = [name for name in ("ids", "views", "folds", "classes") if name in arrays and arrays[name].ndim != 1]
    if lists:
        raise UserError(f"{path}: {lists[0]} has the shape {arrays[lists[0]].shape}; expected a list")
    check_kinds(arrays["ids"], arrays["probs"])
    fold_shape = (len(arrays["folds"]), len(arrays["ids"])) if "folds" in arrays else ()
    if target == "regression" and (arrays["probs"].ndim == 1 or arrays["probs"].shape == fold_shape):
        arrays["probs"] = arrays["probs"][..., None]  # as `predict` of scikit-learn gives them, of one model or of K
    if arrays["probs"].ndim == 2:
        arrays.pop("folds", None)  # one table, for example the mean of the fold models
    probs = arrays["probs"] if "folds" in arrays else arrays["probs"][None]  # (K, N, [V,] C)
    if "folds" not in arrays and "views" not in arrays and arrays["probs"].ndim == 3:
        raise UserError(
            f"{path}: probs has the shape {arrays['probs'].shape}; predictions of K fold models (K, N, C) need the array 'folds' "
            "(K,), those of V views (N, V, C) the array 'views' (V,)"
        )
    if probs.ndim not in (3, 4) or ("folds" in arrays and len(probs) != len(arrays["folds"])) or not len(probs):
        raise UserError(
            f"{path}: probs has the shape {arrays['probs'].shape}; expected (N, C) or (N, V, C), "
            "with the array 'folds' (K, N, C) or (K, N, V, C)"
        )
    probs = probs if probs.ndim == 4 else probs[:, :, None]
    if "classes" in arrays and probs.shape[-1] != len(arrays["classes"]):
        raise UserError(
            f"{path}: probs has {counted(probs.shape[-1], 'column')} and 'classes' {len(arrays['classes']):,}; expected as many"
        )
    if probs.shape[-1] != len(classes):
        raise UserError(
            f"{path} has {probs.shape[-1]} classes; the competition has {len(classes)}: {first_few(classes)}; a class that a model "
            "does not know gets a column of zeros"
        )
    if "classes" not in arrays and len(classes) > 1:
        raise UserError(
            f"{path} has no array 'classes' with the names of its {len(classes)} columns, by which they are joined; write "
            "np.savez(..., classes=names)"
        )
    if "classes" in arrays:
        column_of = {str(name): n for n, name in enumerate(arrays["classes"])}
        missing = [name for name in classes if name not in column_of]
        if missing:
            raise UserError(
                f"{path} lacks {counted(len(missing), 'class', 'classes')}, {first_few(missing)}; its columns are called "
                f"{first_few(list(column_of))}, and the names of the classes were expected"
            )
        probs = probs[..., [column_of[name] for name in classes]]
    views = tuple(str(v) for v in arrays["views"]) if "views" in arrays else (SINGLE_VIEW,)
    # As exact as they are: float16 makes a confident network's probabilities 0 and 1, and ties of what an AUC must order.
    ids, dtype = arrays["ids"].astype(str), np.float16 if probs.dtype == np.float16 else np.float32
    return [ViewPredictions(ids, views, part.astype(dtype), target) for part in probs]
