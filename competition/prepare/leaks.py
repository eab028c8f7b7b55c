"""Leaks: test images among the training images (listed, with a bound of their effect) and leaking external images (removed)."""

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


def leak_sentence(index: pd.DataFrame, leaks: pd.DataFrame, kind: TargetKind) -> str:
    """How many test rows are leaked, and what they can add to the accuracy of any model: "" without any.

    classes only: all T touched rows of N test rows are wrong without the leak and right with it, T / N.
    """
    test = leaks[leaks["kind"].str.startswith("test in ")].drop_duplicates("id")
    rows = int((index["part"] == "test").sum())
    if test.empty:
        return ""
    near = len(test) - int(test["exact"].sum())
    text = f"{len(test):,} of {rows:,} test images are also labelled images"
    if near:  # which images that look alike anyway are, too
        text = f"{len(test):,} of {rows:,} test images are or resemble labelled images ({near:,} nearly equal: see whether they are copies)"
    return f"{text}: worth at most {len(test) / rows:.4f} of accuracy" if kind == "single" else text


def without_leaking_external(index: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (remaining, removed) rows: external rows in a group with a row of the competition, of any part, are removed.

    removed: id, label.
    """
    external = index["part"] == "external"
    leaking = external & index["group"].isin(index.loc[~external, "group"])
    return index[~leaking].reset_index(drop=True), index.loc[leaking, ["id", "label"]].reset_index(drop=True)
