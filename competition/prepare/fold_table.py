"""The folds as tables for other programs: ids, labels and paths of images."""

from pathlib import Path

import pandas as pd

from competition.prepare.adapters.files import SUFFIXES
from competition.prepare.prepared import Prepared


def fold_table(prepared: Prepared, raw: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(id, label, fold, group and file of every training row; id and file of every test row). A group is in one fold.

    label: the class name, the list of class names of several labels, or the value of a regression.
    raw: the folder of the raw files, to which `file` is appended; "" if the image is a record of a TFRecord file.
    """
    train, test = (
        rows.assign(file=[(raw / s).as_posix() if Path(s).suffix.lower() in SUFFIXES else "" for s in rows["shard"]])
        for rows in (prepared.part("train"), prepared.part("test"))
    )
    train["label"] = prepared.competition.written(prepared.targets(train["label"].to_numpy()))
    return train[["id", "label", "fold", "group", "file"]], test[["id", "file"]]
