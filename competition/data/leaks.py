"""Test images among the training images: listed, with what they could be worth. Extra data that leaks: removed."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

# (the rows whose score is touched, the rows a model learns from). A val row in train, or a train row in the extra data
# (which every fold model sees), flatters the local score; a test row among either flatters the leaderboard.
MEETINGS = (
    ("test", "train"),
    ("test", "val"),
    ("test", "external"),
    ("val", "train"),
    ("train", "external"),
    ("val", "external"),
)


@dataclass(frozen=True)
class Inflation:
    """The most that leaked test rows can add to a test score, whatever the model."""

    touched: int  # test rows whose photo has a known label elsewhere
    rows: int  # all test rows
    accuracy: float  # touched / rows: all of them wrong without the leak, right with it
    macro_recall: float  # mean over classes of min(1, t_c / n_c); macro-F1 moves about as much


def find(index: pd.DataFrame) -> pd.DataFrame:
    """kind, id, match, label, exact: every touched row beside the row of its group that gives it away.

    index: with `group` filled in.  label is that of the match.  exact: the same bytes, else nearly the same photo.
    """
    found = []
    for touched, source in MEETINGS:
        left = index.loc[index["part"] == touched, ["id", "group", "sha256"]]
        right = index.loc[index["part"] == source, ["id", "group", "sha256", "label"]]
        met = left.merge(right, on="group", suffixes=("", "_match"))
        met["exact"] = met["sha256"] == met["sha256_match"]
        met = met.sort_values("exact", ascending=False, kind="stable").drop_duplicates("id").sort_values("id")
        met["kind"] = f"{touched} in {source}"
        found.append(met.rename(columns={"id_match": "match"})[["kind", "id", "match", "label", "exact"]])
    return pd.concat(found, ignore_index=True)


def inflation(index: pd.DataFrame, leaks: pd.DataFrame, classes: int) -> Inflation:
    """Upper bounds of what the leaked test rows add.

    accuracy: T / N, with T touched rows of N test rows.  macro recall: (1/C) sum_c min(1, t_c / n_c), with t_c touched
    rows whose match has class c and n_c = N * (share of class c in train), because the test labels are unknown.
    """
    test = leaks[leaks["kind"].str.startswith("test in ")].drop_duplicates("id")
    rows = int((index["part"] == "test").sum())
    train = np.bincount(index.loc[index["part"] == "train", "label"], minlength=classes)
    expected = rows * train / max(train.sum(), 1)
    touched = np.bincount(test["label"], minlength=classes)
    gain = np.minimum(1, np.divide(touched, expected, out=(touched > 0).astype(float), where=expected > 0))
    return Inflation(len(test), rows, len(test) / max(rows, 1), float(gain.mean()))


def without_leaking_external(index: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(kept, removed): external rows that are, by group, a photo of the competition leave, whichever part it is in.

    removed: id, label, meets (the part it was found in; train before val before test).
    """
    external = index["part"] == "external"
    own = index.loc[~external, ["group", "part"]].copy()
    own["rank"] = own["part"].map({"train": 0, "val": 1, "test": 2})
    meets = own.sort_values("rank", kind="stable").drop_duplicates("group").set_index("group")["part"]
    leaking = external & index["group"].isin(meets.index)
    removed = index.loc[leaking, ["id", "label"]].assign(meets=index.loc[leaking, "group"].map(meets))
    return index[~leaking].reset_index(drop=True), removed.reset_index(drop=True)
