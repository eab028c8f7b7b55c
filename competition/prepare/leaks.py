"""Leaks: test images among the training images (listed, with a bound of their effect) and leaking external images (removed)."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from competition.ensemble.metrics import TargetKind

# (part whose score is affected, part that models are trained on). A val row in train, or a train row in the external data
# (on which every fold model is trained), makes the local score optimistic; a test row in either, the leaderboard score.
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
    """What leaked test rows can add to a test score, for any model: a bound for accuracy, about as much for macro recall."""

    touched: int  # test rows whose photo also appears with a label
    rows: int  # all test rows
    accuracy: float  # touched / rows: all wrong without the leak, all right with it
    macro_recall: float  # mean over classes of min(1, t_c / n_c); macro-F1 moves about as much

    def sentence(self, kind: TargetKind) -> str:
        """The leak in one sentence; what it can add is stated for classes only."""
        text = f"{self.touched:,} of {self.rows:,} test images are also labelled images"
        if kind != "single":
            return text
        return (
            f"{text}: worth at most {self.accuracy:.4f} of accuracy, and about "
            f"{self.macro_recall:.4f} of macro recall or macro-F1 if test classes are as frequent as those of the training rows"
        )


def find_leaks(index: pd.DataFrame) -> pd.DataFrame:
    """Return kind, id, match, label, exact of each affected row; match is the id of the row of its group that leaks it.

    index: with `group` filled in.  label is that of the match.  exact: identical bytes, else a near duplicate.
    """
    tables = []
    for touched, source in MEETINGS:
        left = index.loc[index["part"] == touched, ["id", "group", "sha256"]]
        right = index.loc[index["part"] == source, ["id", "group", "sha256", "label"]]
        met = left.merge(right, on="group", suffixes=("", "_match"))
        met["exact"] = met["sha256"] == met["sha256_match"]
        met = met.sort_values("exact", ascending=False, kind="stable").drop_duplicates("id").sort_values("id")
        met["kind"] = f"{touched} in {source}"
        tables.append(met.rename(columns={"id_match": "match"})[["kind", "id", "match", "label", "exact"]])
    return pd.concat(tables, ignore_index=True)


def inflation(index: pd.DataFrame, leaks: pd.DataFrame, classes: int) -> Inflation:
    """Return what the leaked test rows can add.

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
    """Return (remaining, removed) rows: external rows in a group with a row of the competition, of any part, are removed.

    removed: id, label, meets (the part of that row; train before val before test).
    """
    external = index["part"] == "external"
    own = index.loc[~external, ["group", "part"]].copy()
    own["rank"] = own["part"].map({"train": 0, "val": 1, "test": 2})
    meets = own.sort_values("rank", kind="stable").drop_duplicates("group").set_index("group")["part"]
    leaking = external & index["group"].isin(meets.index)
    removed = index.loc[leaking, ["id", "label"]].assign(meets=index.loc[leaking, "group"].map(meets))
    return index[~leaking].reset_index(drop=True), removed.reset_index(drop=True)
