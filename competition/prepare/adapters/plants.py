"""Kaggle's Plant Pathology 2020 (plant-pathology-2020-fgvc7): JPEGs, four one-hot columns; submissions of probabilities.

images/{Train,Test}_N.jpg
train.csv    image_id,healthy,multiple_diseases,rust,scab
test.csv     image_id
sample_submission.csv
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from competition.config.errors import UserError
from competition.prepare.adapter_types import Competition, Row, Settings, require_form
from competition.prepare.adapters import folder
from competition.prepare.adapters.raw_source import fetch_source
from competition.prepare.adapters.tables import read_csv
from competition.prepare.targets import resolve_metric

ID = "image_id"
CLASSES = {"healthy": 516, "multiple_diseases": 91, "rust": 622, "scab": 592}  # class -> training images
NAMES = tuple(CLASSES)
WIDTH = 2048  # pixels of the real photos, 2048 x 1365


def download(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Get the files of the competition from `source` or Kaggle; generate them if `miniature` is above 0."""
    if settings.miniature:
        from competition.prepare.adapters import drawn

        drawn.plants(raw, CLASSES, settings.miniature, settings.image_size or WIDTH, settings.seed)
    else:
        fetch_source(raw, settings, fetch)


def describe(raw: Path, settings: Settings) -> Competition:
    for name in ("train.csv", "sample_submission.csv"):
        columns = list(read_csv(raw / name))
        if columns != [ID, *NAMES]:
            raise UserError(f"{name}: columns {columns} were found, {[ID, *NAMES]} expected; another competition?")
    require_form(settings, "probabilities")
    return Competition(
        name=settings.name,
        slug="" if settings.miniature else settings.slug,
        classes=NAMES,
        metric=resolve_metric("single", settings.metric, "mean_column_auc"),
        predicts="probabilities",
        id_column=ID,
        prediction_columns=NAMES,
        label_values=NAMES,
    )


def rows(raw: Path, settings: Settings) -> Iterator[Row]:
    """Yield the labelled rows, then the test rows."""
    return folder.rows(raw, replace(settings, target="single", id_column=ID))
