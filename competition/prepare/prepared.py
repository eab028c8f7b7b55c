"""The result of `make prepare` that later stages read: the competition, its index, and a digest of both."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.digests import digest_of
from competition.files.manifest import read_record, sha256
from competition.prepare.competition import Competition, with_metric
from competition.prepare.index import load
from competition.storage import files

# What says how predictions are scored and submitted; no fold model depends on it.
OF_THE_SUBMISSION = (
    "slug", "metric", "predicts", "id_column", "prediction_columns", "label_values", "notes", "list_separator",
    "allows_empty_lists",
)  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A prepared competition in `folder`."""

    folder: Path
    competition: Competition
    index: pd.DataFrame  # id, label, part, ..., fold: one row per image, train before test
    digest: str  # of the index and the classes: ids, labels, folds, image bytes; not of the metric
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
            names = files.names(self.remote_records)
            return [f"{self.remote_records}/{n}" for n in names if n.startswith(prefix) and n.endswith(".tfrec")]
        return sorted(map(str, (self.folder / "records").glob(f"{prefix}*.tfrec")))


def load_prepared(folder: Path, metric: str = "", predicts: str = "") -> Prepared:
    """Read a prepared folder.  metric, predicts: of the parameters' block `competition`; "" = the competition's own."""
    competition = Competition.load(folder / "competition.json")
    # What fold models depend on: the index, and the competition without its metric and submission.
    of_models = {key: value for key, value in competition.stated().items() if key not in OF_THE_SUBMISSION}
    if competition.targets.kind == "single":  # grades are trained as classes
        of_models.pop("target", None)
    resolved = str((read_record(folder.parent / "resolve.json", dict[str, object]) or {}).get("path", ""))
    return Prepared(
        folder,
        with_metric(competition, metric, predicts),
        load(folder / "index.csv"),
        sha256(folder / "index.csv") + digest_of(of_models),
        resolved if "://" in resolved else "",
    )
