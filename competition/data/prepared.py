"""The result of `make prepare` that later stages read: the competition, its index, and a digest of both."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from competition.artifacts.manifest import sha256
from competition.data.competition import Competition
from competition.data.index import load
from competition.storage import bucket


@dataclass(frozen=True)
class Prepared:
    """A prepared competition in `folder`."""

    folder: Path
    competition: Competition
    index: pd.DataFrame  # id, label, part, ..., fold: one row per image, train before test
    digest: str  # of the index and the competition: ids, labels, folds, image bytes
    remote_records: str = ""  # gs:// folder of the records, where `make resolve` chose one; "" = beside the index

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """(N,) label numbers of the index -> (N,) int classes, (N, C) bool label sets or (N,) float64 values."""
        return self.competition.targets.of(labels)

    def part(self, name: str) -> pd.DataFrame:
        """Return the rows of one part (train, test, external, val), numbered from 0 in index order."""
        return self.index[self.index["part"] == name].reset_index(drop=True)

    @property
    def sample(self) -> Path:
        return self.folder / "sample_submission.csv"

    def records(self, part: str) -> list[str]:
        """Return the paths of the record files of one part, local or gs://, in order."""
        prefix = "fold" if part == "train" else f"{part}-"
        if self.remote_records:
            names = bucket.names(self.remote_records)
            return [f"{self.remote_records}/{n}" for n in names if n.startswith(prefix) and n.endswith(".tfrec")]
        return sorted(map(str, (self.folder / "records").glob(f"{prefix}*.tfrec")))


def load_prepared(folder: Path) -> Prepared:
    """Read a prepared folder."""
    competition = Competition.load(folder / "competition.json")
    return Prepared(
        folder,
        competition,
        load(folder / "index.csv"),
        data_digest(folder),
        _remote_records(folder.parent / "resolve.json"),
    )


def data_digest(folder: Path) -> str:
    """Return the digest of the index and the competition, or "" if they do not exist."""
    files = (folder / "index.csv", folder / "competition.json")
    return "".join(sha256(file) for file in files) if all(file.is_file() for file in files) else ""


def _remote_records(resolved: Path) -> str:
    """Return the gs:// folder in resolve.json, or "" if there is none."""
    try:
        path = str(json.loads(resolved.read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return path if "://" in path else ""
