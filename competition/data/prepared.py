"""The result of `make prepare` that later stages read: the competition, its index, and a digest of both."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd

from competition.artifacts.manifest import digest_of, sha256
from competition.data.competition import Competition
from competition.data.index import load
from competition.storage import bucket

# What says how predictions are scored and submitted; no fold model depends on it.
OF_THE_SUBMISSION = (
    "slug", "metric", "predicts", "id_column", "prediction_columns", "label_values", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A prepared competition in `folder`."""

    folder: Path
    competition: Competition
    index: pd.DataFrame  # id, label, part, ..., fold: one row per image, train before test
    digest: str  # of the index and the classes: ids, labels, folds, image bytes; not of the metric
    remote_records: str = ""  # gs:// folder of the records, where `make resolve` chose one; "" = beside the index

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


def load_prepared(folder: Path, metric: str = "") -> Prepared:
    """Read a prepared folder.  metric: competition.metric of the parameters; "" = the competition's own."""
    competition = Competition.load(folder / "competition.json")
    return Prepared(
        folder,
        replace(competition, metric=metric) if metric else competition,
        load(folder / "index.csv"),
        data_digest(folder),
        _remote_records(folder.parent / "resolve.json"),
    )


def data_digest(folder: Path) -> str:
    """Return the digest of what fold models depend on: the index, and the competition without its metric and submission."""
    described = asdict(Competition.load(folder / "competition.json"))
    of_models = {key: value for key, value in described.items() if key not in OF_THE_SUBMISSION}
    return sha256(folder / "index.csv") + digest_of(of_models)


def _remote_records(resolved: Path) -> str:
    """Return the gs:// folder in resolve.json, or "" if there is none."""
    try:
        path = str(json.loads(resolved.read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return path if "://" in path else ""
