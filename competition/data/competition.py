"""What every adapter speaks: the settings it is given, the competition it describes, the rows it yields."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from competition.config.errors import UserError

Predicts = Literal["label", "probabilities"]
Part = Literal["train", "val", "test", "external"]  # val: labelled, kept out of the folds


@dataclass(frozen=True)
class Settings:
    """What a user says about the competition; "" and 0 leave the choice to the adapter."""

    name: str
    adapter: str
    slug: str  # Kaggle's name of the competition
    source: str  # folder adapter: a zip or a directory; "" = fetch `slug`
    image_size: int  # pixels: which of several sizes to read or to draw; 0 = the only or the largest
    validation: Literal["pool", "apart"]  # rows that came as validation: join the folds, or stay out of them
    id_column: str
    label_column: str
    metric: str
    predicts: Literal["", "label", "probabilities"]
    miniature: float  # 0 = the real thing; s = drawn images, s times the real class counts
    seed: int
    group_column: str = ""  # folder adapter: column of train.csv whose equal values stay in one fold

    def of_raw_files(self) -> dict[str, Any]:
        """The settings that the raw files depend on."""
        return {key: value for key, value in asdict(self).items() if key != "group_column"}


@dataclass(frozen=True)
class Competition:
    """What is being competed in, as the adapter found it in the raw files."""

    name: str
    slug: str  # "" = nothing to submit to
    classes: tuple[str, ...]  # names, in the order of the class numbers
    metric: str  # a key of ensemble.metrics
    predicts: Predicts
    id_column: str
    prediction_columns: tuple[str, ...]  # one for labels; one per class, in class order, for probabilities
    label_values: tuple[str, ...]  # what a label submission writes for each class
    notes: tuple[str, ...] = ()  # what was found rather than said, one sentence each

    def __post_init__(self) -> None:
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise UserError(
                f"{self.name}: {len(self.classes)} classes were found; two or more, all different, are needed"
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
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Competition":
        told = json.loads(path.read_text(encoding="utf-8"))
        missing = {field.name for field in fields(cls)} ^ set(told)
        if missing:
            raise UserError(f"{path}: keys {sorted(missing)} are missing or unknown; make download writes it again")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
        }
        return cls(**values)


def only_predicts(settings: Settings, own: Predicts) -> None:
    """For competitions whose submission has one form: asking for another is a mistake, not a wish."""
    if settings.predicts not in ("", own):
        raise UserError(
            f"competition.predicts: {settings.predicts} was asked for, {settings.adapter} takes {own}; leave it empty"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One image as the competition gives it. The id is data, never a path."""

    id: str
    label: int  # class number, -1 when unknown
    part: Part
    shard: str  # file it is in, relative to the raw folder
    place: int  # number of the record in that file; 0 when the file is the image
    data: bytes  # the encoded image
    group: str = ""  # rows of one group stay in one fold; "" = the row stands alone
