"""The results of `make prepare` that later stages read: the competition, its index, a digest of both, and what limits an
honest score: series across folds, and test rows unlike training rows.
"""

import json
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import pandas as pd

from competition.config.digests import digest_of
from competition.config.plugins import NO_PLUGINS, Plugins
from competition.ensemble.metrics import Metric, metric_named
from competition.files.image_codec import SUFFIXES
from competition.files.manifest import read_record, sha256
from competition.prepare.adapter_types import Competition, with_metric
from competition.prepare.index import load
from competition.prepare.shift import Shift
from competition.storage import files

# What says how predictions are scored and submitted; no fold model depends on it.
OF_THE_SUBMISSION = (
    "slug", "metric", "predicts", "id_column", "prediction_columns", "label_values", "notes", "list_separator",
    "allows_empty_lists",
)  # fmt: skip
# Files of a prepared folder on which the statements of a blend about series and shift depend.
CAVEAT_FILES = ("series.csv", "shift.csv", "shift.json")


@dataclass(frozen=True)
class Prepared:
    """A prepared competition in `folder`."""

    folder: Path
    competition: Competition
    index: pd.DataFrame  # id, label, part, ..., fold: one row per image, train before test
    digest: str  # of the index and the classes: ids, labels, folds, image bytes; not of the metric
    remote_records: str = ""  # gs:// folder of the records, where `make resolve` chose one; "" = beside the index
    plugins: Plugins = NO_PLUGINS  # of the parameters, which may define the metric

    @cached_property
    def metric(self) -> Metric:
        """That of the competition."""
        return metric_named(self.competition.metric, self.plugins)

    def part(self, name: str) -> pd.DataFrame:
        """Return the rows of one part (train, test, external, val), numbered from 0 in index order."""
        return self._parts.get(name, self.index[:0]).copy(deep=False)  # shares its columns until one is assigned

    @cached_property
    def _parts(self) -> dict[str, pd.DataFrame]:
        return {str(part): rows.reset_index(drop=True) for part, rows in self.index.groupby("part", sort=False)}

    @cached_property
    def image_digests(self) -> dict[str, str]:
        """Part -> digest of its ids and the bytes of its images, in order. Neither labels nor folds take part."""
        columns = ["id", "sha256", "problem"]
        return {part: digest_of(rows[columns].to_numpy().tolist()) for part, rows in self._parts.items()}

    @property
    def folds_digest(self) -> str:
        """Digest of id -> fold. External out-of-fold predictions must be made with the same folds."""
        train = self.part("train")
        return digest_of(sorted(zip(train["id"].to_numpy().tolist(), train["fold"].astype(int).tolist())))

    def records(self, part: str) -> list[str]:
        """Return the paths of the record files of one part, local or gs://, in order."""
        prefix = "fold" if part == "train" else f"{part}-"
        folder = self.remote_records or str(self.folder / "records")
        return [f"{folder}/{name}" for name in files.names(folder) if fnmatch(name, f"{prefix}*.tfrec")]


def load_prepared(folder: Path, metric: str = "", predicts: str = "") -> Prepared:
    """Read a prepared folder.  metric, predicts: of the parameters' block `competition`; "" = the competition's own."""
    competition = Competition.load(folder / "competition.json")
    # What fold models depend on: the index, and the competition without its metric and submission.
    of_models = {key: value for key, value in competition.fields_to_write().items() if key not in OF_THE_SUBMISSION}
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


def fold_tables(prepared: Prepared, raw: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The folds for other programs: (id, label, fold, group and file of every training row; id and file of every test row).

    A group is in one fold.
    label: the class name, the list of class names of several labels, or the value of a regression.
    raw: the folder of the raw files, to which `file` is appended; "" if the image is a record of a TFRecord file.
    """
    train, test, folder, suffixes = prepared.part("train"), prepared.part("test"), raw.as_posix(), tuple(SUFFIXES)
    for rows in (train, test):
        shards = rows["shard"].to_numpy().tolist()  # texts: a Path of each takes ten times as long
        rows["file"] = [f"{folder}/{one}" if one.lower().endswith(suffixes) else "" for one in shards]
    train["label"] = prepared.competition.as_table_values(prepared.competition.targets.of(train["label"].to_numpy()))
    return train[["id", "label", "fold", "group", "file"]], test[["id", "file"]]


@dataclass(frozen=True)
class Caveats:
    """series: id -> number, of the training rows in one.  odds: id -> odds, of the training rows.  shift: None = unknown."""

    series: dict[str, int]
    odds: dict[str, float]
    shift: Shift | None


def load_caveats(folder: Path) -> Caveats:
    """Read the caveats of a prepared folder."""
    members, odds = (
        pd.read_csv(folder / name, dtype={"id": str, "nearest": str}, keep_default_na=False)
        for name in ("series.csv", "shift.csv")
    )
    shift = json.loads((folder / "shift.json").read_text(encoding="utf-8"))
    train = odds[odds["part"] == "train"]
    return Caveats(
        dict(zip(members["id"], members["series"].astype(int))),
        dict(zip(train["id"], train["odds"].astype(float))),
        Shift(**shift) if shift else None,
    )
