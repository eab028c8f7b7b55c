"""Prepared data of two classes and three folds, and the files of fold models, without images and without training."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from builders import competition

from competition.config.params import ExcludedFolds
from competition.ensemble.predictions import ViewPredictions
from competition.files.manifest import write_manifest
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import Run

FOLDS, ROWS = 3, 12
INDEX = pd.DataFrame(
    {
        "id": [f"i{n:02}" for n in range(ROWS)] + ["t0"],
        "part": ["train"] * ROWS + ["test"],
        "label": [*(np.arange(ROWS) % 2), -1],
        "fold": [*(np.arange(ROWS) % FOLDS), -1],
    }
)
TWO = competition(metric="macro_f1")
PREPARED = Prepared(Path("data"), TWO, INDEX, "d" * 64)


def write_weights(run: Run, fold: ExcludedFolds, depends: Mapping[str, object], weights: bytes) -> None:
    """Write the files of a fold model that other results depend on, like `make train`."""
    manifest = fold_manifest_path(run, fold)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.with_name("weights.npz").write_bytes(weights)
    write_manifest(manifest, depends, [manifest.with_name("weights.npz")], {}, {})


def save_rows(path: Path, is_saved: pd.Series, probability: float) -> None:
    """Write predictions of some rows of the index, in reverse order, with `probability` for the first class."""
    ids = INDEX.loc[is_saved, "id"].to_numpy(str)[::-1]
    probs = np.tile(np.array([probability, 1 - probability], np.float16), (len(ids), 1, 1))
    ViewPredictions(ids, ("identity",), probs).save(path)
