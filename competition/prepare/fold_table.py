"""The folds as tables for other programs: ids, labels and paths of images."""

from pathlib import Path

import pandas as pd

from competition.prepare.adapters.files import SUFFIXES
from competition.prepare.prepared import Prepared


def fold_table(prepared: Prepared, raw: Path) -> pd.DataFrame:
    """id, label, fold, group and file of every training row. Rows of one group are in one fold.

    label: the class name, the list of class names of several labels, or the value of a regression.
    raw: the folder of the raw files, to which `file` is appended.
    """
    train = prepared.part("train")
    labels = prepared.competition.written(prepared.targets(train["label"].to_numpy()))
    table = train[["id", "fold", "group"]].assign(label=labels, file=_image_files(train, raw))
    return table[["id", "label", "fold", "group", "file"]]


def unlabelled_table(prepared: Prepared, raw: Path) -> pd.DataFrame:
    """id and file of every test row."""
    test = prepared.part("test")
    return test[["id"]].assign(file=_image_files(test, raw))


def _image_files(rows: pd.DataFrame, raw: Path) -> list[str]:
    """Path of the image of each row; "" if it is a record of a TFRecord file."""
    return [(raw / shard).as_posix() if Path(shard).suffix.lower() in SUFFIXES else "" for shard in rows["shard"]]
