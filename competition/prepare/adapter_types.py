"""The types that adapters share: the user's settings, the description of a competition, and its rows."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from competition.config.errors import UserError, counted, first_few
from competition.config.params import Block, CompetitionParams, Params
from competition.ensemble.metrics import METRICS
from competition.files.manifest import changed_keys
from competition.prepare.targets import KIND_OF, Target, Targets, resolve_metric, target_of_metric

Predicts = Literal["label", "probabilities", "value"]  # value: the number of a regression
# Names in the folder of raw files; the second is read by `make grade` alone.
SAMPLE, SOLUTION = "sample_submission.csv", "private/solution.csv"
Part = Literal["train", "val", "test", "external"]  # val: labelled, kept out of the folds


@dataclass(frozen=True, kw_only=True)
class Settings(CompetitionParams):
    """The block `competition` of params.yaml, and what adapters need of the block `prepare`.

    "" and 0 leave the choice to the adapter.  source: a zip or a directory; "" = download `slug`.  image_size: pixels; which
    of several sizes to read or to generate.  validation: whether validation rows join the folds or stay out of them.
    miniature: 0 = the real data; s = generated images, s times the real class counts.  class_level: which of the folders
    above an image is its class, from 1.  group_column: column of train.csv whose equal values stay in one fold.
    """

    target: Literal["", "single", "multi", "ordinal", "regression"] = ""
    class_level: int = 0
    seed: int
    group_column: str = ""

    def of_raw_files(self) -> dict[str, object]:
        """Return the settings that the raw files depend on."""
        unused = {"group_column", *(key for key in ("target", "class_level") if not getattr(self, key))}
        return {key: value for key, value in asdict(replace(self, metric="")).items() if key not in unused}

    def of_data(self) -> "Settings":
        """The settings that the prepared data depend on.

        Of the metric that is only the target which it implies, and the form of a multi-label submission. So one metric stands
        for all that imply the same, and data are not prepared again when the metric changes to one of these.
        """
        target = None if self.target else target_of_metric(self.metric)
        metric = {"ordinal": "quadratic_kappa", "regression": "rmse"}.get(target or "", "")
        if target == "multi":
            metric = "multilabel_macro_f1" if METRICS[self.metric].needs_labels else "mean_average_precision"
        return replace(self, metric=metric)


def settings_of(params: Params) -> Settings:
    """The parameters that an adapter reads."""
    prepare = params.prepare
    return Settings(**asdict(params.competition), seed=prepare.seed, group_column=prepare.group_column)


# Settings that say which rows and which labels are read.
TASK_SETTINGS = ("adapter", "source", "miniature", "validation", "id_column", "label_column", "class_level")


def changes_of_task(settings: Settings, recorded: Mapping[str, object], target: Target) -> list[str]:
    """ "competition.target: single -> ordinal" for each setting that makes prepared data those of another task.

    recorded: the settings that the data were prepared with.  target: that of the prepared data.
    `source` is compared only where it exists: a machine that copied prepared data does not have it.
    """
    now = asdict(settings)
    has_source = Path(os.path.expanduser(settings.source)).exists()
    keys = [key for key in TASK_SETTINGS if key in recorded and (key != "source" or has_source)]
    wanted = settings.target or target_of_metric(settings.metric) or target
    before, after = {key: recorded[key] for key in keys}, {key: now[key] for key in keys}
    return changed_keys({"competition": before | {"target": target}}, {"competition": after | {"target": wanted}})


@dataclass(frozen=True)
class Competition(Block):
    """Description of a competition, detected by the adapter in the raw files.

    Fold models depend on every field that is not in prepared.OF_THE_SUBMISSION.
    """

    name: str
    slug: str  # "" = nothing to submit to
    classes: tuple[str, ...]  # class names, by class number; of a regression, the name of its value alone
    metric: str  # a key of ensemble.metrics
    predicts: Predicts
    id_column: str
    prediction_columns: tuple[str, ...]  # one for labels (multi-label: or one per class, of 0 and 1) and for a value;
    # one per class, in class order, for probabilities
    label_values: tuple[str, ...]  # the text of each class in a submission of labels
    notes: tuple[str, ...] = ()  # sentences about what was detected rather than configured
    target: Target = "single"
    label_targets: tuple[str, ...] = ()  # by label number: multi, "0110", one digit per class | regression, a number
    list_separator: str = " "  # multi-label: between the labels of a list in a submission
    allows_empty_lists: bool = True  # multi-label: False = every row of a submission has a label

    def __post_init__(self) -> None:
        fewest = 1 if self.target == "regression" else 2
        if repeated := sorted({name for name in self.classes if self.classes.count(name) > 1}):
            raise UserError(f"{self.name}: several classes are named {first_few(repeated)}; expected different names")
        if len(self.classes) < fewest:
            raise UserError(
                f"{self.name}: {counted(len(self.classes), 'class', 'classes')} in the data, {first_few(self.classes)}; expected several"
            )
        if len(self.label_values) != len(self.classes):
            raise UserError(f"{self.name}: {len(self.label_values)} label values for {len(self.classes)} classes")
        columns = 1 if self.predicts == "label" else len(self.classes)
        is_zero_one = self.target == "multi" and len(self.prediction_columns) == len(self.classes)
        if len(self.prediction_columns) != columns and not is_zero_one:
            raise UserError(f"{self.name}: {len(self.prediction_columns)} prediction columns, expected {columns}")
        if self.id_column in self.prediction_columns:
            raise UserError(f"{self.name}: {self.id_column!r} is a column of ids and of predictions; rename one")

    @property
    def targets(self) -> Targets:
        """What the label numbers of the index stand for."""
        kind = KIND_OF[self.target]
        if kind == "multi":
            return Targets(kind, np.array([list(digits) for digits in self.label_targets]) == "1")
        return Targets(kind, np.array(self.label_targets, np.float64))

    @property
    def label_count(self) -> int:
        """L, the number of label numbers: the classes, or the distinct label sets or values."""
        return len(self.label_targets) or len(self.classes)

    @property
    def is_label_list(self) -> bool:
        """True if a submission has one column with a list of labels."""
        return self.target == "multi" and self.predicts == "label" and len(self.prediction_columns) == 1

    @property
    def needs_a_label(self) -> bool:
        """True if every row of a multi-label submission needs a label, so that the decision rule gives it one."""
        return self.is_label_list and not self.allows_empty_lists

    @property
    def scores_its_submissions(self) -> bool:
        """False if the metric scores probabilities and submissions are labels: it compares blends, and scores no submission."""
        metric = METRICS.get(self.metric)  # those of plugins take what is submitted
        is_of_probabilities = metric is not None and self.target == "single" and not metric.needs_labels
        return not (self.predicts == "label" and is_of_probabilities)

    def label_text(self, label: int, as_in_the_table: bool = False) -> str:
        """A label number as text: the class, the classes of the set, or the number; "unknown" if it is none.

        as_in_the_table: the classes by their values in the table of labels.
        """
        names, separator = (self.label_values, self.list_separator) if as_in_the_table else (self.classes, " ")
        if not 0 <= label < self.label_count:
            return "unknown"
        if not self.label_targets:
            return names[label]
        target = self.label_targets[label]
        if self.target == "regression":
            return target.removesuffix(".0")
        return separator.join(name for name, digit in zip(names, target, strict=True) if digit == "1") or "no label"

    def as_table_values(self, targets: np.ndarray) -> list[str] | list[float]:
        """(N,) cells for tables: class names, or for label sets their names joined ("" = no label), or the values of a regression.

        targets: (N,) class numbers, (N, C) label sets or (N,) values.
        The names are joined by the separator of lists, or by | where a name holds it.
        """
        if self.target == "regression":
            return [float(value) for value in targets]
        if self.target == "multi":
            separator = "|" if any(self.list_separator in name for name in self.classes) else self.list_separator
            return [separator.join(np.array(self.classes)[chosen]) for chosen in targets]
        return [self.classes[number] for number in targets]

    def fields_to_write(self) -> dict[str, object]:
        """Its fields; those of other targets than single labels are left out where they have their defaults."""
        of_targets = ("target", "label_targets", "list_separator", "allows_empty_lists")
        defaults = {field.name: field.default for field in fields(self) if field.name in of_targets}
        return {key: value for key, value in asdict(self).items() if key not in defaults or value != defaults[key]}

    def json_bytes(self) -> bytes:
        """Return the content of competition.json."""
        return (json.dumps(self.fields_to_write(), indent=1, ensure_ascii=False) + "\n").encode("utf-8")

    @classmethod
    def load(cls, path: Path) -> "Competition":
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise UserError(
                f"{path}: {problem}; `make prepare FORCE=1` rewrites the file, `make convert` one in raw/"
            ) from None


def with_metric(competition: Competition, metric: str, predicts: str = "") -> Competition:
    """The competition scored by competition.metric of the parameters; "" = its own metric.

    Where a multi-label submission has one column per class, its form follows the metric unless competition.predicts
    (`predicts`) states it: 0 and 1 for a metric of decisions, else probabilities.
    Raises UserError for a metric of another target.
    """
    if not metric:
        return competition
    name = resolve_metric(competition.target, metric)
    if competition.target != "multi" or competition.is_label_list or predicts:
        return replace(competition, metric=name)
    return replace(competition, metric=name, predicts="label" if METRICS[name].needs_labels else "probabilities")


def require_form(settings: Settings, own: Predicts) -> None:
    """Raise UserError if the settings ask for a form of submission, or a target, that the competition does not have."""
    if settings.predicts not in ("", own):
        raise UserError(f"competition.predicts: {settings.predicts} was asked for, expected {own}; leave it empty")
    if settings.target not in ("", "single"):
        raise UserError(f"competition.target: {settings.target} was found; leave it empty for {settings.adapter}")


@dataclass(frozen=True, slots=True)
class Row:
    """One image of the raw files. The id is never used as a path.

    A field that later stages shall read also needs a column in index.COLUMNS, and its name in index._inspect.
    """

    id: str
    label: int  # label number (Competition.targets; the class number of a single label), -1 when unknown
    part: Part
    shard: str  # file with the image, relative to the raw folder; "" = a row without an image
    place: int  # number of the record in that file; 0 if the file is the image itself
    data: bytes  # the encoded image
    group: str = ""  # rows of one group stay in one fold; "" = no group


@dataclass(frozen=True)
class Layout:
    """What the adapter `folder` detects in a source, by its tables or by its class folders."""

    competition: Competition
    ids: list[str]  # of the labelled rows, with validation rows
    labels: list[int]  # of the labelled rows
    groups: list[str]  # of the labelled rows; "" = no group
    test_ids: list[str]
    path_of: Mapping[str, str]  # id of each row -> its image file, relative to the folder
    validation: Collection[str]  # ids of the labelled rows in a folder named val
    # Id and the columns, as text, that the tables of both labelled and test rows have besides; None = there are none.
    columns: pd.DataFrame | None = None
