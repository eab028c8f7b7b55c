"""Strict reading and writing of CSV files: all cells are text; a malformed row is an error with its line number."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from competition.config.errors import UserError

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


def in_natural_order(values: Sequence[str]) -> list[str]:
    """Sort by value if all are whole numbers, else alphabetically."""
    if all(value.isascii() and value.isdigit() for value in values):
        return sorted(values, key=lambda value: (int(value), value))
    return sorted(values)
