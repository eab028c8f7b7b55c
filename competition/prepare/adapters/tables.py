"""Strict reading and writing of CSV files: all cells are text; a malformed row is an error with its line number."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from competition.config.errors import UserError, counted, first_few

# Spreadsheets of many countries write semicolons, because their decimal sign is a comma.
SEPARATORS = (",", ";", "\t", "|")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(csv_text(header, rows), encoding="utf-8", newline="")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def read_csv(path: Path) -> pd.DataFrame:
    """Read all columns as text, so that "001", "NA", "1e5" and "" are unchanged; missing fields are "". UTF-8, with or without BOM.

    The separator is the one of SEPARATORS that is most frequent in the header.
    """
    if not path.is_file():
        raise UserError(f"{path.name}: no such file in the raw files; it was expected beside the images")
    try:
        text = path.read_bytes().decode("utf-8-sig")  # line ends in a cell stay as they are
        separator = max(
            SEPARATORS, key=(text.splitlines() or [""])[0].count
        )  # the first of several, so a comma in doubt
        # The header is read as a row: pandas would rename a repeated name, and take an extra field of all rows as an index.
        table = pd.read_csv(io.StringIO(text, newline=""), sep=separator, header=None, dtype=str, keep_default_na=False)
    except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{path.name}: {problem}; a table in UTF-8 with a line of column names was expected") from None
    header, rows = table.iloc[0].tolist(), table.iloc[1:]
    if repeated := [name for name in header if header.count(name) > 1]:
        raise UserError(f"{path.name}: column {repeated[0]!r} appears {header.count(repeated[0])} times; rename one")
    return rows.set_axis(header, axis=1).reset_index(drop=True)


def one_hot_labels(table: pd.DataFrame, columns: Sequence[str], id_column: str, name: str) -> list[int]:
    """Return the number of the column that holds the 1. Rows that are not one-hot raise UserError with their ids.

    Soft labels and multi-label rows are other tasks, which taking the largest column would hide.
    """
    values = table[list(columns)].apply(pd.to_numeric, errors="coerce")
    wrong = ~(values.isin((0.0, 1.0)).all(axis=1) & (values.sum(axis=1) == 1))
    if wrong.any():
        raise UserError(
            f"{name}: {counted(int(wrong.sum()), 'row')} not one-hot over {first_few(columns)}, "
            f"{first_few(table[id_column][wrong])}; every row needs exactly one 1, the rest 0"
        )
    return [int(number) for number in values.to_numpy().argmax(axis=1)]


def class_labels(values: pd.Series, label_values: Sequence[str], name: str) -> list[int]:
    """Return the number of each value in `label_values`.

    values: indexed by id.  Raises UserError for empty and unknown values.
    """
    numbers = {value: number for number, value in enumerate(label_values)}
    unknown = values[~values.isin(numbers.keys())]
    if len(unknown):
        classes = counted(len(numbers), "class", "classes")
        raise UserError(
            f"{name}: {counted(len(unknown), 'row')} without a label of the {classes} in column {values.name!r}, "
            f"{first_few(unknown.unique())} of {first_few(unknown.index)}; if there is a classes.csv, it must list all classes"
        )
    return [numbers[value] for value in values]


def in_natural_order(values: Sequence[str]) -> list[str]:
    """Sort by value if all are whole numbers, else alphabetically."""
    if all(value.isascii() and value.isdigit() for value in values):
        return sorted(values, key=lambda value: (int(value), value))
    return sorted(values)
