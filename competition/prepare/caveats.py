"""Assumptions of an honest score, as `make prepare` checked them: no series across folds, test rows like training rows."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from competition.files.manifest import sha256
from competition.prepare import series
from competition.prepare.shift import Shift

FILES = ("series.csv", "shift.csv", "shift.json")
NOTED = 0.01  # share of the training rows in series across folds below which nothing is reported
SHEET_SERIES, SHEET_PHOTOS, SHEET_TESTS = 16, 6, 32  # on the contact sheets, at most


@dataclass(frozen=True)
class Caveats:
    """series: id -> number, of the training rows in one.  odds: id -> odds, of the training rows.  shift: None = unknown."""

    series: dict[str, int]
    odds: dict[str, float]
    shift: Shift | None

    def crossing(self, ids: np.ndarray, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (N,) bool, whether another row of the series is in another fold, and (N,) int, the series, -1 = none."""
        number = np.array([self.series.get(row_id, -1) for row_id in ids], int)
        return series.crossing(number, folds), number


def load_caveats(folder: Path) -> Caveats:
    """Read the caveats of a prepared folder; empty if an older version wrote it without these files."""
    members, odds = _read(folder / "series.csv"), _read(folder / "shift.csv")
    shift = folder / "shift.json"
    facts = json.loads(shift.read_text(encoding="utf-8")) if shift.is_file() else {}
    train = odds[odds["part"] == "train"]
    return Caveats(
        dict(zip(members["id"], members["series"].astype(int))),
        dict(zip(train["id"], train["odds"].astype(float))),
        Shift(**facts) if facts else None,
    )


def digests(folder: Path) -> dict[str, str]:
    """Return file -> sha256 of the existing files, on which a blend's statements about series and shift depend."""
    return {name: sha256(folder / name) for name in FILES if (folder / name).is_file()}


def series_tiles(members: pd.DataFrame, index: pd.DataFrame) -> dict[str, str]:
    """Return id -> caption for a contact sheet of the largest series, those across folds first.  members: of series.find."""
    fold = dict(zip(index["id"], index["fold"].astype(int)))
    table = members.assign(fold=members["id"].map(fold))
    sizes = table.groupby("series")["fold"].agg(["nunique", "size"])
    sizes["crosses"] = sizes["nunique"] > 1
    order = sizes.sort_values(["crosses", "size"], ascending=False, kind="stable").index[:SHEET_SERIES]
    tiles: dict[str, str] = {}
    for rank, number in enumerate(order, 1):
        for row in table[table["series"] == number].head(SHEET_PHOTOS).itertuples():
            tiles[str(row.id)] = f"series {rank} of {len(sizes)}\n{row.id}, fold {row.fold}"
    return tiles


def shift_tiles(odds: pd.DataFrame) -> dict[str, str]:
    """Return id -> caption for a contact sheet of the test rows least like training rows.  odds: of shift.compare."""
    worst = odds[odds["part"] == "test"].sort_values("odds", ascending=False, kind="stable").head(SHEET_TESTS)
    return {str(row.id): f"{row.id}\nodds {row.odds:.3g}" for row in worst.itertuples()}


def _read(file: Path) -> pd.DataFrame:
    if not file.is_file():
        return pd.DataFrame(columns=["id", "part", "series", "odds"])
    return pd.read_csv(file, dtype={"id": str, "nearest": str}, keep_default_na=False)
