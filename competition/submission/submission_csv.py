"""Write a submission in the order of sample_submission.csv, and read a submission or a sample.

Ids are always text ("001", "NA" and "1e5" are kept); rows are joined by id, never by position.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.files.manifest import atomic_write
from competition.prepare.adapter_types import Competition
from competition.prepare.adapters.tables import csv_text, read_csv

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters that a spreadsheet would run; ids are never changed here


def write(ids: np.ndarray, predictions: np.ndarray, competition: Competition, sample_path: Path, path: Path) -> str:
    """Write `path` atomically, in the order of the sample; return the sha256 of the file.

    ids: (N,) str, unique, exactly those of the sample.
    predictions: (N,) int class numbers when the competition predicts labels ((N, C) bool if multi-label), (N, C)
    probabilities, or (N, 1) values.
    """
    sample = read_predictions(sample_path, competition)
    require_ids("the predictions", ids, sample.index, sample_path)
    cells = _cells(predictions[pd.Index(ids).get_indexer(sample.index)], competition)
    rows = ([name, *row] for name, row in zip(sample.index, cells, strict=True))
    content = csv_text([competition.id_column, *competition.prediction_columns], rows).encode()
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _cells(predictions: np.ndarray, competition: Competition) -> list[list[str]]:
    """The cells of each row as text.  predictions: as of `write`."""
    if competition.predicts != "label":
        if wrong := int((~np.isfinite(predictions)).any(axis=1).sum()):
            raise UserError(
                f"{counted(wrong, 'row')} of {competition.predicts} not finite: a submission cannot hold NaN or infinity."
            )
        # The shortest decimals that convert back to the same float32, so that rounding creates no ties.
        return predictions.astype(np.float32).astype(str).tolist()
    values = np.array(competition.label_values)
    if competition.target != "multi":
        return [[value] for value in values[predictions]]
    if not competition.is_label_list:
        return predictions.astype(int).astype(str).tolist()
    empty = int((~predictions.any(axis=1)).sum())
    if empty and not competition.allows_empty_lists:
        raise UserError(
            f"{counted(empty, 'row')} without a label: {competition.name} expects one or more in every row."
        )
    return [[competition.list_separator.join(values[row])] for row in predictions]


def read_predictions(path: Path, competition: Competition) -> pd.DataFrame:
    """The prediction columns of a submission or of a sample, as text, by id, in the file's order.

    Raises UserError for other columns, a repeated id and a file without rows.
    """
    table, expected = read_csv(path), [competition.id_column, *competition.prediction_columns]
    if differing := sorted({*table.columns} ^ {*expected}):
        raise UserError(
            f"{path} has the columns {first_few(table.columns)}, expected {first_few(expected)}; they differ in {first_few(differing)}"
        )
    ids = table[competition.id_column]
    repeated = ids[ids.duplicated()].unique()
    if not len(ids) or len(repeated):
        problem = f"{counted(len(repeated), 'id')} more than once ({first_few(repeated)})" if len(ids) else "0 rows"
        raise UserError(f"{path} has {problem}; expected one or more rows, each id once")
    return table[expected].set_index(competition.id_column)


def require_ids(what: object, ids: Iterable[str], expected: pd.Index, source: object) -> None:
    """Raise UserError with counts and first examples unless `ids` are the expected ones, each once.

    what, source: where the ids and the expected ones are from.
    """
    found = pd.Index(ids)
    problems = {
        "more than once": found[found.duplicated()].unique(),
        "missing": expected.difference(found, sort=False),
        "too many": found.difference(expected, sort=False),
    }
    parts = [
        f"{counted(len(names), 'id')} {text} ({first_few(names)})" for text, names in problems.items() if len(names)
    ]
    if parts:
        raise UserError(
            f"{what}: expected the {counted(len(expected), 'id')} of {source}, each once; {', '.join(parts)}"
        )


def check_sample(sample_path: Path, test_ids: Iterable[str], competition: Competition) -> pd.Index:
    """Return the ids of the sample; UserError if they are not the ids of the test images, each once."""
    if not sample_path.is_file():
        raise UserError(
            f"{sample_path} is missing: expected the sample submission of {competition.name}; run `make download`"
        )
    sample, ids = read_predictions(sample_path, competition).index, pd.Index(test_ids)
    try:
        require_ids(sample_path, sample, ids, "the test images")
    except UserError as error:
        raise UserError(
            f"{error}; the tables and the sample must have the same ids, with or without folders and the ending of the file; if the sample "
            "is stale, run `make download FORCE=1`"
        ) from None
    return sample


def for_spreadsheet(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ' before every text that a spreadsheet would run. Never for a submission or a table that is joined by id."""
    return table.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell)
