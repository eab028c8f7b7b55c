"""Members trained elsewhere (PyTorch/XLA, Lightning, fastai, Accelerate, ...): two files of predictions with ids.

A CSV has a column `id` and one column per class name. An .npz has `ids` (N,) and `probs` (N, C), or `ids`, `views` and
`probs` (N, V, C); its columns are in the order of the competition's classes, or of its own `classes` (C,).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from competition.ensemble.predictions import Predictions, ViewPredictions
from competition.errors import Refusal

GIVEN = "given"  # the one view of predictions that come without views
SURER = 0.05  # mean probability of the chosen class, out-of-fold above test, that calls for a warning


@dataclass(frozen=True)
class Foreign:
    """oof: in the order of the training rows.  test: in the order of the test rows.  notes: what a reader must know."""

    oof: ViewPredictions
    test: ViewPredictions
    notes: tuple[str, ...]


def load_foreign(
    oof: Path,
    test: Path,
    classes: Sequence[str],
    train_ids: np.ndarray,
    test_ids: np.ndarray,
    folds_digest: str,
    declared_digest: str,
) -> Foreign:
    """Read, check and put in order.

    folds_digest: sha256 of our file of folds.  declared_digest: of the one the member was trained with; "" = unknown.
    """
    train, blind = _read(oof, classes, train_ids), _read(test, classes, test_ids)
    if train.views != blind.views:
        raise Refusal(f"{oof} has views {list(train.views)}, {test} has {list(blind.views)}; expected the same")
    return Foreign(train, blind, tuple(_notes(train, blind, folds_digest, declared_digest)))


def _notes(oof: ViewPredictions, test: ViewPredictions, ours: str, declared: str) -> list[str]:
    notes = []
    if not declared:
        notes.append(
            "folds unknown: whether each out-of-fold row was unseen rests on the maker's word; "
            f"if they are those of data/index.csv, say predictions.folds: {ours}"
        )
    elif declared != ours:
        notes.append("other folds than ours: duplicates may sit on both sides, honest scores may flatter")
    # A model is about as sure of unseen training rows as of test rows; much surer of the former means it saw them.
    sure, unsure = (float(p.probs.astype(np.float32).max(-1).mean()) for p in (oof, test))
    if sure - unsure > SURER:
        notes.append(f"surer of training rows ({sure:.3f}) than of test rows ({unsure:.3f}): are they out-of-fold?")
    return notes


def _read(path: Path, classes: Sequence[str], ids: np.ndarray) -> ViewPredictions:
    """The rows of `ids`, in their order. Whatever is wrong is said with the file's name."""
    if not path.exists():
        raise Refusal(f"{path} is not there; expected the predictions of a foreign member (.csv or .npz)")
    if path.suffix not in (".csv", ".npz"):
        raise Refusal(f"{path}: expected .csv or .npz")
    try:
        return (_read_csv if path.suffix == ".csv" else _read_npz)(path, classes).at(ids)
    except Refusal as refusal:
        text = str(refusal)
        raise Refusal(text if text.startswith(str(path)) else f"{path}: {text}") from refusal


def _read_csv(path: Path, classes: Sequence[str]) -> ViewPredictions:
    table = Predictions.load_csv(path, classes)
    return ViewPredictions(table.ids, (GIVEN,), table.probs[:, None].astype(np.float16))


def _read_npz(path: Path, classes: Sequence[str]) -> ViewPredictions:
    try:
        with np.load(path, allow_pickle=False) as file:
            have = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise Refusal(f"{path} is not a readable .npz without pickled objects ({error})") from error
    if not {"ids", "probs"} <= have.keys():
        raise Refusal(f"{path}: expected the arrays 'ids' and 'probs', found {sorted(have)}")
    probs = have["probs"] if have["probs"].ndim == 3 else have["probs"][:, None]
    if probs.shape[-1] != len(classes):
        raise Refusal(f"{path} has {probs.shape[-1]} classes; the competition has {len(classes)}")
    if "classes" in have:
        probs = probs[..., _columns(path, have["classes"], classes)]
    views = tuple(str(v) for v in have["views"]) if "views" in have else (GIVEN,)
    return ViewPredictions(have["ids"].astype(str), views, probs.astype(np.float16))


def _columns(path: Path, theirs: np.ndarray, classes: Sequence[str]) -> list[int]:
    place = {str(name): n for n, name in enumerate(theirs)}
    missing = [name for name in classes if name not in place]
    if missing:
        raise Refusal(f"{path}: {len(missing)} classes are missing, first {missing[:3]}")
    return [place[name] for name in classes]
