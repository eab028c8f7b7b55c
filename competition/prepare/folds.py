"""Assignment of training rows to folds: stratified by class, never splitting a group of duplicates."""

import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted
from competition.prepare.duplicates import merged
from competition.prepare.index import has_images
from competition.prepare.targets import SINGLE, Targets


def assign(index: pd.DataFrame, folds: int, seed: int, targets: Targets = SINGLE, grouped_by: str = "") -> np.ndarray:
    """Return the fold of each row, (N,) int: 0..folds-1 for training rows, -1 for all others.

    Stratified by class, by `Targets.strata` where targets are not classes.
    grouped_by: what joins images beside being the same photo, for the message; "" = nothing.

    The result depends on ids, labels, groups and the seed, not on the order of rows or files. A class with fewer groups
    than folds is spread over as many folds as it has groups (see `support`).
    """
    from sklearn.model_selection import StratifiedGroupKFold

    train = np.flatnonzero(index["part"] == "train")
    train = train[np.argsort(index["id"].to_numpy(str)[train], kind="stable")]
    labels = targets.strata(index["label"].to_numpy()[train], folds)
    groups = pd.factorize(index["group"].to_numpy()[train])[0]
    count = int(groups.max(initial=-1)) + 1
    if count < folds:
        raise UserError(_too_few_groups(index.iloc[train], count, folds, grouped_by))
    if np.bincount(labels).max() < folds:
        raise UserError(f"no class has {folds} training images; lower prepare.folds to {np.bincount(labels).max()}")
    fold = np.full(len(index), -1)
    with warnings.catch_warnings():  # make prepare reports rare classes by name
        warnings.filterwarnings("ignore", message="The least populated class")
        splits = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(labels, labels, groups)
        for number, (_, held_out) in enumerate(splits):
            fold[train[held_out]] = number
    return fold


def _too_few_groups(train: pd.DataFrame, groups: int, folds: int, grouped_by: str) -> str:
    """Why so few groups cannot make the folds, and what to do."""
    images, files = counted(len(train), "training image"), train["sha256"].nunique()
    if files < folds and has_images(train) and len(train) >= folds:
        copies = "the same picture" if files == 1 else f"copies of {files} pictures"
        return (
            f"the {images} are {copies}, and copies are never in different folds: replace them by the images of the rows (a table "
            "without any image file does for predictions made elsewhere)"
        )
    grouped = f"{images} in {counted(groups, 'group')} ({grouped_by}; the same photos are one group, too)"
    remedy = f"lower prepare.folds to {groups}, or group less" if groups > 1 else "more groups are needed, two or more"
    return (
        f"{grouped if grouped_by else counted(groups, 'different training image')} cannot make {folds} folds; {remedy}"
    )


def merge_equal_names(index: pd.DataFrame, names: Mapping[str, object]) -> np.ndarray:
    """Return the groups of the index, (N,) int, with all rows of equal name merged.  names: id -> name; ids may be absent."""
    named = index["id"].map(names)
    rows = np.flatnonzero(named.notna())
    _, first_row, which = np.unique(named.to_numpy()[rows].astype(str), return_index=True, return_inverse=True)
    return merged(index["group"].to_numpy(), rows, rows[first_row[which]])


def support(index: pd.DataFrame, classes: int, targets: Targets = SINGLE) -> pd.DataFrame:
    """Return the number of training rows per class and fold: (C, K), index class, columns fold.

    Multi-label: the rows that have the class. A regression has one row, with all rows of the fold.
    """
    train = index[index["part"] == "train"]
    has_class = targets.class_rows(train["label"].to_numpy(), classes)
    has_class = np.ones_like(has_class) if targets.kind == "regression" else has_class
    table = pd.DataFrame(has_class.astype(int), index=train["fold"]).groupby(level=0).sum().T
    return table.rename_axis(index="class", columns="fold")
