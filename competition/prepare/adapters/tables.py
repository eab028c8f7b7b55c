"""Strict reading and writing of CSV files: all cells are text; a malformed row is an error with its line number."""

import codecs
import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from competition.config.errors import UserError, counted, first_few

# Spreadsheets of many countries write semicolons, because their decimal sign is a comma.
SEPARATORS = (",", ";", "\t", "|")
HEAD = 100_000  # characters that are searched for the end of the header


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(csv_text(header, rows), encoding="utf-8", newline="")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def read_csv(path: Path) -> pd.DataFrame:
    """Read all columns as text, so that "001", "NA", "1e5" and "" are unchanged. A BOM is removed.

    The separator is the one of SEPARATORS that gives the most column names. UTF-8, or UTF-16 with its BOM.
    pandas would silently use an extra field as index and rename a duplicate column; here both are errors.
    """
    if not path.is_file():
        raise UserError(f"{path.name}: no such file in the raw files; it was expected beside the images")
    data = path.read_bytes()
    try:
        text = data.decode("utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    try:
        headers = {one: next(csv.reader(io.StringIO(text[:HEAD], newline=""), delimiter=one), []) for one in SEPARATORS}
        separator = max(SEPARATORS, key=lambda one: len(headers[one]))  # the first of several, so a comma in doubt
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        header = next(lines, [])
        rows = []
        for row in filter(None, lines):
            if len(row) != len(header):
                raise UserError(f"{path.name}, line {lines.line_num}: {len(row)} fields under {len(header)} columns")
            rows.append(row)
    except csv.Error as error:
        raise UserError(f"{path.name}, line {lines.line_num}: {error}") from None
    if not header:
        raise UserError(f"{path.name}: the file is empty; a line of column names was expected")
    if repeated := [name for name in header if header.count(name) > 1]:
        raise UserError(f"{path.name}: column {repeated[0]!r} appears {header.count(repeated[0])} times; rename one")
    return pd.DataFrame(rows, columns=header, dtype=str)


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

    values: indexed by id.  Empty and unknown values raise one UserError with the number of their rows.
    """
    numbers = {value: number for number, value in enumerate(label_values)}
    unknown = values[~values.isin(numbers.keys())]
    bare, others = unknown[unknown == ""], unknown[unknown != ""]
    problems = []
    if len(bare):
        without = f"{counted(len(bare), 'row')} without a value in {values.name!r}, {first_few(bare.index)}"
        problems.append(f"{name}: {without}; fill it in, or remove the row")
    if len(others):
        problems.append(
            f"{name}: {counted(len(others), 'row')} with a label outside the {counted(len(numbers), 'class', 'classes')}, "
            f"{first_few(others.unique())}; if there is a classes.csv, it must list all classes"
        )
    if problems:
        raise UserError("\n".join(problems))
    return [numbers[value] for value in values]


def raise_together(*checks: Callable[[], object]) -> None:
    """Run all checks, and raise one UserError with the lines of all that fail."""
    problems = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))


def in_natural_order(values: Sequence[str]) -> list[str]:
    """Sort by value if all are whole numbers, else alphabetically."""
    if all(value.isascii() and value.isdigit() for value in values):
        return sorted(values, key=lambda value: (int(value), value))
    return sorted(values)
