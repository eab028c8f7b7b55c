"""Detects in a table of labels what is predicted - a class, a set of classes, a grade or a number - and reads the labels."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.prepare.adapters.tables import in_natural_order
from competition.prepare.targets import Target, target_of_metric

DECIMAL_COMMA = r"[-+]?\d+,\d+"
REPEATED = 0.9  # share of the lists whose labels occur in other lists as well, from which cells are lists of labels
MOST_GRADES = 100


@dataclass(frozen=True)
class Labels:
    """The labels of the table.  numbers: (N,) label number of each row.  targets: what each label number stands for."""

    target: Target
    names: tuple[str, ...]  # of the classes; the label column of a regression
    values: tuple[str, ...]  # their text in a submission
    numbers: list[int]
    targets: tuple[str, ...]  # multi: "0110", one digit per class | regression: a number | else empty
    note: str  # about what was detected
    separator: str = ""  # between the labels of a list; "" = no lists
    has_empty_lists: bool = False


def detect_target(
    table: pd.DataFrame, columns: Sequence[str], listed: Sequence[str], wanted: str, metric: str
) -> Target:
    """What the label columns hold.  listed: known classes (of classes.csv or of the sample's columns); may be empty.

    wanted: competition.target, which decides if it is not "".  metric: competition.metric, which may imply the target.
    """
    implied = target_of_metric(metric)
    if wanted or implied:
        return wanted or implied  # type: ignore[return-value]
    if len(columns) > 1:
        cells = zeros_and_ones(table, columns)
        return "multi" if cells is not None and (cells.sum(1) != 1).any() else "single"
    cells_of_column = table[columns[0]]
    with_comma = cells_of_column[cells_of_column.str.fullmatch(DECIMAL_COMMA)]
    if not listed and len(with_comma) and cells_of_column.str.fullmatch(rf"{DECIMAL_COMMA}|[-+]?\d+").all():
        raise UserError(
            f"column {columns[0]!r} holds cells such as {with_comma.iloc[0]!r}, which are numbers with a decimal comma or lists "
            "of two labels: set competition.target=regression or competition.target=multi"
        )
    if _are_lists(cells_of_column, listed):
        return "multi"
    # Numbers are no class numbers if one is not whole, or if most of them occur once.
    numbers = pd.to_numeric(cells_of_column, errors="coerce").to_numpy()
    is_whole = np.all(numbers == np.round(numbers)) and len(np.unique(numbers)) <= max(20, len(numbers) / 2)
    return "regression" if not listed and np.isfinite(numbers).all() and not is_whole else "single"


def read_columns(table: pd.DataFrame, columns: Sequence[str], table_name: str) -> Labels:
    """Multi-label: one column of 0 and 1 per class."""
    cells = zeros_and_ones(table, columns)
    if cells is None:
        raise UserError(
            f"{table_name}: columns {first_few(columns)} do not all hold 0 and 1, which competition.target: multi needs; set "
            "competition.label_column if the labels are in one column"
        )
    several = int((cells.sum(1) > 1).sum())
    note = f"{len(columns)} label columns hold 0 and 1 with several ones in {counted(several, 'row')}: multi-label"
    return Labels("multi", tuple(columns), tuple(columns), *_label_sets(cells), note)


def read_lists(column: pd.Series, values: Sequence[str], names: dict[str, str], table_name: str) -> Labels:
    """Multi-label: one column of lists of labels, such as "scab rust".  values: the classes; [] = those that occur."""
    lists, separators = _split_cells(column)
    listed_classes = {label for labels in lists for label in labels}
    values = list(values) or in_natural_order(sorted(listed_classes))
    unknown = sorted(listed_classes - set(values))
    if unknown:
        raise UserError(
            f"{table_name}: {counted(len(unknown), 'label')} of column {column.name!r} outside the {len(values)} classes, "
            f"{first_few(unknown)}"
        )
    number = {value: n for n, value in enumerate(values)}
    cells = np.zeros((len(lists), len(values)), bool)
    for row, labels in enumerate(lists):
        cells[row, [number[label] for label in labels]] = True
    separator = max(sorted(set(separators)), key=separators.count, default=" ")
    several, empty = int((cells.sum(1) > 1).sum()), int((~cells.any(1)).sum())
    without = f" and none in {empty:,}" if empty else ""
    note = (
        f"column {column.name!r} holds lists of {len(values)} labels, several in {several:,} rows{without}: multi-label"
    )
    class_names = tuple(names.get(value, value) for value in values)
    return Labels("multi", class_names, tuple(values), *_label_sets(cells), note, separator, bool(empty))


def read_numbers(column: pd.Series, table_name: str) -> Labels:
    """Regression: one column of numbers."""
    name = str(column.name)
    numbers = _numbers(column, "competition.target: regression", table_name)
    distinct, label_numbers = np.unique(numbers, return_inverse=True)
    note = f"column {name!r} holds numbers from {distinct[0]:g} to {distinct[-1]:g}: regression"
    targets = tuple(repr(float(value)) for value in distinct)
    return Labels("regression", (name,), (name,), label_numbers.tolist(), targets, note)


def read_grades(column: pd.Series, table_name: str) -> Labels:
    """Ordinal: one column of whole numbers. The classes are all grades from the lowest to the highest, also absent ones."""
    name = str(column.name)
    numbers = _numbers(column, "competition.target: ordinal", table_name)
    grades = numbers.astype(int)
    low, high = int(grades.min()), int(grades.max())
    if (grades != numbers).any() or not 0 < high - low < MOST_GRADES:
        raise UserError(
            f"{table_name}: column {name!r} holds numbers from {numbers.min():g} to {numbers.max():g}; competition.target: "
            f"ordinal needs 2 to {MOST_GRADES} whole grades, competition.target: regression takes any numbers"
        )
    values = tuple(str(grade) for grade in range(low, high + 1))
    note = f"column {name!r} holds grades from {low} to {high}: ordinal"
    return Labels("ordinal", values, values, (grades - low).tolist(), (), note)


def zeros_and_ones(table: pd.DataFrame, columns: Sequence[str]) -> np.ndarray | None:
    """(N, C) bool of columns that hold 0 and 1 only (also as 0.0 and 1.0); None for other content."""
    cells = table[list(columns)].apply(pd.to_numeric, errors="coerce").to_numpy()
    return cells == 1 if np.isin(cells, (0.0, 1.0)).all() else None


def _label_sets(cells: np.ndarray) -> tuple[list[int], tuple[str, ...]]:
    """`numbers` and `targets` of Labels.  cells: (N, C) bool."""
    sets, numbers = np.unique(cells, axis=0, return_inverse=True)
    return numbers.reshape(-1).tolist(), tuple("".join(map(str, one.astype(int))) for one in sets)


def _split_cells(cells: Iterable[str]) -> tuple[list[list[str]], list[str]]:
    """The labels of each cell, and what separates them.

    That is ; or | where a cell has one, so that labels may hold blanks and commas; else blanks and commas.
    """
    texts = [cell.strip() for cell in cells]
    between = re.compile(r"\s*[;|][\s;|]*" if any(";" in text or "|" in text for text in texts) else r"[\s,]+")
    lists = [[label for label in between.split(text) if label] for text in texts]
    return lists, [separator for text in texts for separator in between.findall(text)]


def _are_lists(column: pd.Series, listed: Sequence[str]) -> bool:
    """Return True if cells are lists of labels, and not class names that contain blanks.

    Known classes decide. Otherwise nearly all cells of several labels must consist of labels that other cells have too.
    """
    cells = sorted(set(column))
    labels_of = dict(zip(cells, _split_cells(cells)[0], strict=True))
    if listed:
        known = set(listed)
        return any(cell not in known for cell in cells) and all(known.issuperset(one) for one in labels_of.values())
    several = [cell for cell in cells if len(labels_of[cell]) > 1]
    cells_with = Counter(label for labels in labels_of.values() for label in set(labels))
    repeated = [cell for cell in several if all(cells_with[label] > 1 for label in labels_of[cell])]
    return bool(several) and len(repeated) >= REPEATED * len(several)


def _numbers(column: pd.Series, reason: str, table_name: str) -> np.ndarray:
    """(N,) float64. Raises UserError for a cell that is not a finite number."""
    with_points = column.str.replace(",", ".") if column.str.fullmatch(rf"{DECIMAL_COMMA}|[-+]?\d+").all() else column
    numbers = pd.to_numeric(with_points, errors="coerce").to_numpy(np.float64)
    wrong = column[~np.isfinite(numbers)]
    if len(wrong):
        raise UserError(
            f"{table_name}: {len(wrong):,} cells of column {column.name!r} are not numbers, {first_few(wrong.unique())}; {reason} "
            "needs a number in every row"
        )
    return numbers


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
