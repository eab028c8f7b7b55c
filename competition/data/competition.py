"""The types that adapters share: the user's settings, the description of a competition, and its rows."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from competition.config.errors import UserError

Predicts = Literal["label", "probabilities"]
Part = Literal["train", "val", "test", "external"]  # val: labelled, kept out of the folds


@dataclass(frozen=True)
class Settings:
    """Settings of the user; "" and 0 leave the choice to the adapter."""

    name: str
    adapter: str
    slug: str  # name of the competition in its Kaggle URL
    source: str  # folder adapter: a zip or a directory; "" = download `slug`
    image_size: int  # pixels: which of several sizes to read or to generate; 0 = the largest
    validation: Literal["pool", "apart"]  # whether validation rows join the folds or stay out of them
    id_column: str
    label_column: str
    metric: str
    predicts: Literal["", "label", "probabilities"]
    miniature: float  # 0 = the real data; s = generated images, s times the real class counts
    seed: int
    group_column: str = ""  # folder adapter: column of train.csv whose equal values stay in one fold

    def of_raw_files(self) -> dict[str, Any]:
        """Return the settings that the raw files depend on."""
        return {key: value for key, value in asdict(replace(self, metric="")).items() if key != "group_column"}


@dataclass(frozen=True)
class Competition:
    """Description of a competition, detected by the adapter in the raw files."""

    name: str
    slug: str  # "" = nothing to submit to
    classes: tuple[str, ...]  # class names, by class number
    metric: str  # a key of ensemble.metrics
    predicts: Predicts
    id_column: str
    prediction_columns: tuple[str, ...]  # one for labels; one per class, in class order, for probabilities
    label_values: tuple[str, ...]  # the text of each class in a submission of labels
    notes: tuple[str, ...] = ()  # sentences about what was detected rather than configured

    def __post_init__(self) -> None:
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise UserError(
                f"{self.name}: {len(self.classes)} classes were found; at least two different classes are required"
            )
        if len(self.label_values) != len(self.classes):
            raise UserError(f"{self.name}: {len(self.label_values)} label values for {len(self.classes)} classes")
        columns = 1 if self.predicts == "label" else len(self.classes)
        if len(self.prediction_columns) != columns:
            raise UserError(
                f"{self.name}: a submission of {self.predicts} has {columns} prediction columns, "
                f"{len(self.prediction_columns)} were found"
            )

        if self.id_column in self.prediction_columns:
            raise UserError(
                f"{self.name}: a submission would have two columns {self.id_column!r}, the ids and a prediction; "
                "rename the class or the id column, or set competition.id_column to another column"
            )

    def save(self, path: Path) -> None:
        path.write_bytes(self.json_bytes())

    def json_bytes(self) -> bytes:
        """Return the content of competition.json."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode("utf-8")

    @classmethod
    def load(cls, path: Path) -> "Competition":
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        unmatched = {field.name for field in fields(cls)} ^ set(values)
        if unmatched:
            raise UserError(
                f"{path}: keys {sorted(unmatched)} are missing or unknown; `make download` rewrites the file"
            )
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        return cls(**values)


def only_predicts(settings: Settings, own: Predicts) -> None:
    """Raise UserError if the settings ask for a form of submission that the competition does not accept."""
    if settings.predicts not in ("", own):
        raise UserError(
            f"competition.predicts: {settings.predicts} was asked for, {settings.adapter} takes {own}; leave it empty"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One image of the raw files. The id is never used as a path."""

    id: str
    label: int  # class number, -1 when unknown
    part: Part
    shard: str  # file with the image, relative to the raw folder
    place: int  # number of the record in that file; 0 if the file is the image itself
    data: bytes  # the encoded image
    group: str = ""  # rows of one group stay in one fold; "" = no group
