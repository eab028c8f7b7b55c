"""What `make download` leaves for every later stage: the competition, its rows, and a digest of both."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from competition.data.competition import Competition
from competition.data.index import load
from competition.manifest import sha256


@dataclass(frozen=True)
class Prepared:
    folder: Path
    competition: Competition
    index: pd.DataFrame  # id, label, part, ..., fold: one row per image, train before test
    digest: str  # of the index and the competition: ids, labels, folds, image bytes

    def part(self, name: str) -> pd.DataFrame:
        """Rows of one part (train, test, external, val), numbered from 0 in index order."""
        return self.index[self.index["part"] == name].reset_index(drop=True)

    @property
    def sample(self) -> Path:
        return self.folder / "sample_submission.csv"

    def records(self, part: str) -> list[Path]:
        prefix = "fold" if part == "train" else f"{part}-"
        return sorted((self.folder / "records").glob(f"{prefix}*.tfrec"))


def load_prepared(folder: Path) -> Prepared:
    competition = Competition.load(folder / "competition.json")
    return Prepared(
        folder,
        competition,
        load(folder / "index.csv"),
        sha256(folder / "index.csv") + sha256(folder / "competition.json"),
    )
