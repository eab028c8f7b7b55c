"""Which columns of a table of labels hold the ids, the labels and the class names. What is not certain is an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from competition.config.errors import UserError, first_few
from competition.prepare.adapters.files import ImageFiles
from competition.prepare.adapters.target_tables import zeros_and_ones
from competition.prepare.competition import Settings

# A column with one of these names is the label if the values of the table leave several possibilities.
LABEL_NAMES = ("label", "class", "category", "target", "species", "breed", "class_name", "label_name", "class_id")


@dataclass(frozen=True)
class LabelColumns:
    """columns: the label's, or one per class.  names: label value -> class name, {} = the values are the names."""

    columns: list[str]
    names: Mapping[str, str] = field(default_factory=dict)
    named_by: str = ""  # the column of the class names, if any


def find_id_column(
    table: pd.DataFrame, test: pd.DataFrame | None, configured: str, files: ImageFiles, name: str
) -> str:
    """The column of ids: a column of both tables, if there are several the first whose values are names of image files."""
    tables = {name: table} if test is None else {name: table, "test.csv": test}
    if configured:
        for table_name, content in tables.items():
            if configured not in content:
                raise UserError(
                    f"competition.id_column: {table_name} has no column {configured!r}, it has {first_few(_names(content))}"
                )
        return configured
    shared = _names(table) if test is None else [column for column in _names(test) if column in table]
    if not shared and test is not None:
        raise UserError(
            f"{name} ({first_few(_names(table))}) and test.csv ({first_few(_names(test))}) share no column; "
            "set competition.id_column"
        )
    naming = [column for column in shared if files.known_share(list(table[column])) == 1]
    return (naming or shared)[0]


def find_labels(
    table: pd.DataFrame, id_column: str, test: Sequence[str], targets: Sequence[str], name: str, settings: Settings
) -> LabelColumns:
    """The label columns of `table`.

    test: columns of the test table, which has no labels.  targets: prediction columns of the sample submission.
    Raises UserError that asks for competition.label_column if it is not certain.
    """
    if wanted := settings.label_column:
        if wanted not in table:
            raise UserError(
                f"competition.label_column: {name} has no column {wanted!r}, it has {first_few(_names(table))}"
            )
        return _with_names(table, wanted, [column for column in _names(table) if column not in (id_column, wanted)])
    if targets and all(column in table for column in targets):
        others = [column for column in _names(table) if column not in (id_column, *targets)]
        return _with_names(table, targets[0], others) if len(targets) == 1 else LabelColumns(list(targets))
    others = [column for column in _names(table) if column != id_column and column not in test]
    if len(others) == 1 or (others and not targets and zeros_and_ones(table, others) is not None):
        return LabelColumns(others)
    numbered = [(a, b) for a in others for b in others if a != b and _is_named_by(table, a, b)]
    if len(numbered) == 1:  # one column of numbers, one of their names
        return _with_names(table, numbered[0][0], [numbered[0][1]])
    named = [column for column in others if column.casefold() in LABEL_NAMES]
    if len(named) == 1 and not table[named[0]].is_unique:
        return LabelColumns(named)
    if settings.target == "multi" and others:
        return LabelColumns(others)
    raise UserError(
        f"{name} has the columns {first_few(others, 8)} besides the ids in {id_column!r}, and it is not certain which of "
        f'them is the label: set competition.label_column, e.g. SET="competition.label_column={(named or others or ["label"])[0]}"'
    )


def _names(table: pd.DataFrame) -> list[str]:
    return [str(column) for column in table.columns]


def _with_names(table: pd.DataFrame, column: str, others: Sequence[str]) -> LabelColumns:
    """The label column; its class names from another column if its values are numbers and one column names them."""
    naming = [other for other in others if _is_named_by(table, column, other)]
    if len(naming) != 1:
        return LabelColumns([column])
    names = dict(zip(table[column], table[naming[0]], strict=True))
    return LabelColumns([column], names, naming[0])


def _is_named_by(table: pd.DataFrame, numbers: str, names: str) -> bool:
    """Return True if `numbers` holds whole numbers that repeat and `names` has one name for each, different for all."""
    if not table[numbers].str.fullmatch(r"\d+").all() or table[names].str.fullmatch(r"[-+.\d]*").any():
        return False
    pairs = table[[numbers, names]].drop_duplicates()
    one_to_one = not pairs[numbers].duplicated().any() and not pairs[names].duplicated().any()
    return one_to_one and 2 <= len(pairs) < len(table)
