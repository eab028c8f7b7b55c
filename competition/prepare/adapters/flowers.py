"""Kaggle's flowers (flower-classification-with-tpus, tpu-getting-started): 104 classes in TFRecords of four sizes.

tfrecords-jpeg-{192x192,224x224,331x331,512x512}/{train,val,test}/NN-224x224-COUNT.tfrec   features id, image, class
sample_submission.csv                                                                     id,label
competition.json                                                                          only in a result of `make convert`
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from competition.config.errors import UserError
from competition.prepare import record_files
from competition.prepare.adapter_types import Competition, Part, Row, Settings, require_form
from competition.prepare.adapters.raw_source import fetch_source
from competition.prepare.targets import resolve_metric

# Class -> training images, in the order of the competition's class numbers.
with Path(__file__).with_name("flowers.csv").open(encoding="utf-8", newline="") as table:
    CLASSES = {name: int(images) for name, images in csv.reader(table)}
SIZES = (192, 224, 331, 512)  # pixels
DESCRIPTION = "competition.json"
FOLDER = re.compile(r"tfrecords-(?:jpeg|png)-(\d+)x\1")


def download(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Get the files of the competition from `source` or Kaggle; generate them if `miniature` is above 0."""
    if settings.miniature:
        from competition.prepare.adapters import drawn

        sizes = (settings.image_size,) if settings.image_size else SIZES
        drawn.flowers(raw, CLASSES, settings.miniature, sizes, settings.seed)
    else:
        fetch_source(raw, settings, fetch)


def describe(raw: Path, settings: Settings) -> Competition:
    """Return Kaggle's flower competition, or the one that `make convert` described in competition.json."""
    converted = raw / DESCRIPTION
    if (raw / "manifests").exists() and not (raw / "manifest.json").exists():
        raise UserError("the conversion of these files is not finished; run make convert again, then make download")
    if not converted.exists():
        return label_competition(settings, list(CLASSES))
    competition = Competition.load(converted)
    require_form(settings, competition.predicts)
    metric = settings.metric or competition.metric
    return replace(competition, name=settings.name, slug=settings.slug, metric=metric, notes=())


def label_competition(settings: Settings, names: Sequence[str]) -> Competition:
    """Return a competition with columns id,label of class numbers and, by default, macro-F1 over all classes.

    Kaggle's page: "a separate F1 score is calculated for each label and then averaged". The score of
    an absent class is not stated; all 104 classes are among the 7,382 test images, where both definitions agree.
    """
    require_form(settings, "label")
    return Competition(
        name=settings.name,
        slug="" if settings.miniature else settings.slug,
        classes=tuple(names),
        metric=resolve_metric("single", settings.metric, "macro_f1"),
        predicts="label",
        id_column="id",
        prediction_columns=("label",),
        label_values=tuple(str(number) for number in range(len(names))),
    )


def rows(raw: Path, settings: Settings) -> Iterator[Row]:
    """Yield all records of one image size: train, val, test, each in the order of the file names."""
    size = settings.image_size
    folders = {int(match[1]): path for path in raw.iterdir() if (match := FOLDER.fullmatch(path.name))}
    if not folders:
        raise UserError("no folder like tfrecords-jpeg-224x224 in the raw files; make download FORCE=1 fetches them")
    if size and size not in folders:
        raise UserError(f"competition.image_size: {size} was found, expected one of {sorted(folders)}; 0 = the largest")
    folder = folders[size or max(folders)]
    parts: tuple[Part, ...] = ("train", "val", "test")
    for part in parts:
        shards = sorted((folder / part).glob("*.tfrec"))
        if not shards and part != "val":
            raise UserError(f"{folder.name}/{part} holds no .tfrec file; make download FORCE=1 fetches them again")
        for shard in shards:
            row_part: Part = "train" if part == "val" and settings.validation == "pool" else part
            for place, record in enumerate(record_files.read_shard(str(shard), labelled=part != "test")):
                where = shard.relative_to(raw).as_posix()
                label = -1 if record.label is None else record.label
                yield Row(record.id, label, row_part, where, place, record.image)
