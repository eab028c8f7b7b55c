"""CSV files as competitions have them, read strictly: every cell is text, an odd row is an error with its number."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from competition.config.errors import UserError, first


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def read_csv(path: Path) -> pd.DataFrame:
    """All columns as str, exactly as written: "001", "NA", "1e5" and "" stay what they are. A BOM is taken off.

    pandas would take an extra field for an index and rename a doubled header without a word; here both are refused.
    """
    if not path.is_file():
        raise UserError(f"{path.name}: no such file in the raw files; it was expected beside the images")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = next(lines, [])
            rows = []
            for row in lines:
                if row and len(row) != len(header):
                    raise UserError(
                        f"{path.name}, line {lines.line_num}: {len(row)} fields under {len(header)} columns"
                    )
                if row:
                    rows.append(row)
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{path.name}, line {lines.line_num}: {error}") from None
    if not header:
        raise UserError(f"{path.name}: it is empty; a line of column names was expected")
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise UserError(
            f"{path.name}: column {doubled[0]!r} appears {header.count(doubled[0])} times; rename all but one"
        )
    return pd.DataFrame(rows, columns=header, dtype=str)


def one_hot_labels(table: pd.DataFrame, columns: Sequence[str], id_column: str, name: str) -> list[int]:
    """The number of the column that holds the one; rows that are not one-hot are refused by name.

    Soft and multi-label rows are other tasks: taking their largest column would hide them.
    """
    try:
        values = table[list(columns)].astype(float)
    except ValueError as error:
        raise UserError(f"{name}: {error}; columns {first(columns)} should hold 0 and 1") from None
    wrong = ~(values.isin((0.0, 1.0)).all(axis=1) & (values.sum(axis=1) == 1))
    if wrong.any():
        raise UserError(
            f"{name}: {wrong.sum():,} rows are not one-hot over {first(columns)}, "
            f"{first(table[id_column][wrong])}; every row needs exactly one 1, the rest 0"
        )
    return [int(number) for number in values.to_numpy().argmax(axis=1)]


def class_labels(values: pd.Series, label_values: Sequence[str], name: str) -> list[int]:
    """The number of each value in `label_values`; a value that is not there is refused with its rows' count."""
    numbers = {value: number for number, value in enumerate(label_values)}
    unknown = ~values.isin(numbers.keys())
    if unknown.any():
        raise UserError(
            f"{name}: {unknown.sum():,} rows have a label outside the {len(numbers)} classes, "
            f"{first(values[unknown].unique())}; classes.csv lists them all where there is one"
        )
    return [numbers[value] for value in values]


def in_natural_order(values: Sequence[str]) -> list[str]:
    """Whole numbers by size, anything else by the alphabet."""
    if all(value.isascii() and value.isdigit() for value in values):
        return sorted(values, key=lambda value: (int(value), value))
    return sorted(values)
