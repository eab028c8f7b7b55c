"""Columns of the tables besides ids and labels, such as age, sex and site: features of their own beside those of a network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few

FILE = "columns.csv"  # of the prepared data: ids, and the columns that train.csv and test.csv share, as text
MOST_VALUES = 100  # of a column of text; each value is a feature


def encoded_columns(folder: Path, names: Sequence[str], ids: np.ndarray) -> np.ndarray:
    """(N, D) float32 from 0 to 1: the columns `names` of the rows `ids`, (N,) str; labels take no part.

    A column of numbers is scaled by its least and largest value; an empty cell has the mean, and a feature of its own says that
    it is empty. A column of text has one feature for each of its values. Rows that the tables do not have, such as external
    images, are empty.
    folder: of the prepared data.  Raises UserError for a column that is missing or has too many values.
    """
    table = pd.read_csv(folder / FILE, dtype=str, keep_default_na=False) if (folder / FILE).is_file() else None
    known = [] if table is None else list(table.columns[1:])
    missing = [name for name in names if name not in known]
    if table is None or missing:
        raise UserError(
            f"head.columns: {first_few(missing)} was found; expected columns that train.csv and test.csv share besides ids and labels "
            f"({first_few(known, 20) if known else 'the prepared data have none'}); state one of them, or none"
        )
    of_rows = table.set_index(table.columns[0]).reindex(ids, fill_value="")
    return np.concatenate([_encoded(table[name], of_rows[name], name) for name in names], axis=1)


def _encoded(column: pd.Series, cells: pd.Series, name: str) -> np.ndarray:
    """(N, D) float32 of some cells of a column."""
    filled = column[column != ""]
    numbers = pd.to_numeric(filled, errors="coerce")
    if len(filled) and np.isfinite(numbers).all():
        least, span = numbers.min(), (numbers.max() - numbers.min()) or 1.0
        scaled = (pd.to_numeric(cells, errors="coerce") - least) / span
        features = [scaled.fillna((numbers.mean() - least) / span)]
        if scaled.isna().any() or len(filled) < len(column):
            features.append(scaled.isna())
        return np.stack(features, 1).astype(np.float32)
    values = sorted(set(filled))
    if len(values) > MOST_VALUES:
        raise UserError(
            f"head.columns: column {name!r} has {counted(len(values), 'different text')}, such as {first_few(values, 3)}; at most "
            f"{MOST_VALUES} are expected, because each becomes a feature"
        )
    return (cells.to_numpy()[:, None] == np.array(["", *values], object)).astype(np.float32)
