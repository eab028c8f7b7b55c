"""What `make download` leaves for every later stage: the competition, its rows, and a digest of both."""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from competition.artifacts.manifest import sha256
from competition.data.competition import Competition
from competition.data.index import load
from competition.storage import bucket


@dataclass(frozen=True)
class Prepared:
    folder: Path
    competition: Competition
    index: pd.DataFrame  # id, label, part, ..., fold: one row per image, train before test
    digest: str  # of the index and the competition: ids, labels, folds, image bytes
    remote_records: str = ""  # gs:// folder of the records, where `make resolve` chose one; "" = beside the index

    def part(self, name: str) -> pd.DataFrame:
        """Rows of one part (train, test, external, val), numbered from 0 in index order."""
        return self.index[self.index["part"] == name].reset_index(drop=True)

    @property
    def sample(self) -> Path:
        return self.folder / "sample_submission.csv"

    def records(self, part: str) -> list[str]:
        """Paths of the record files of one part, in order, as TensorFlow reads them: local or gs://."""
        prefix = "fold" if part == "train" else f"{part}-"
        if self.remote_records:
            names = bucket.names(self.remote_records)
            return [f"{self.remote_records}/{n}" for n in names if n.startswith(prefix) and n.endswith(".tfrec")]
        return sorted(map(str, (self.folder / "records").glob(f"{prefix}*.tfrec")))


def load_prepared(folder: Path) -> Prepared:
    competition = Competition.load(folder / "competition.json")
    return Prepared(
        folder,
        competition,
        load(folder / "index.csv"),
        data_digest(folder),
        _elsewhere(folder.parent / "resolve.json"),
    )


def data_digest(folder: Path) -> str:
    """Digest of the index and the competition; "" before they are there."""
    files = (folder / "index.csv", folder / "competition.json")
    return "".join(sha256(file) for file in files) if all(file.is_file() for file in files) else ""


def _elsewhere(resolved: Path) -> str:
    try:
        path = str(json.loads(resolved.read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return path if "://" in path else ""
