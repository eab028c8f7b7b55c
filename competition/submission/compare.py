"""Compare two submissions: the rows that changed."""

from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError
from competition.prepare.adapter_types import Competition
from competition.submission.submission_csv import read_predictions, require_ids


def compare_submissions(a: Path, b: Path, competition: Competition) -> tuple[pd.DataFrame, float]:
    """(What both answer, columns a and b by id in A's order; largest difference of a number, NaN between labels).

    A row of probabilities has changed if its most probable class has.
    """
    before, after = (read_predictions(path, competition) for path in (a, b))
    require_ids(b.name, after.index, before.index, a.name)
    after, largest = after.loc[before.index], float("nan")
    if competition.predicts != "label":
        try:
            largest = float(np.abs(before.astype(float) - after.astype(float)).max(axis=None))
        except ValueError as error:
            raise UserError(f"{a.name} or {b.name}: {error}; expected numbers") from None
    texts = {"a": _answers(before, competition), "b": _answers(after, competition)}
    return pd.DataFrame(texts, before.index), largest


def _answers(table: pd.DataFrame, competition: Competition) -> list[str]:
    """The (most probable) class of each row, its labels in a fixed order, or its number."""
    separator, classes = competition.list_separator, np.array(competition.classes)
    if competition.is_label_list:
        return [separator.join(sorted(cell.split(separator))) for cell in table.iloc[:, 0]]
    if competition.target == "regression":
        return table.iloc[:, 0].tolist()
    if competition.predicts == "label" and competition.target != "multi":
        names = dict(zip(competition.label_values, competition.classes))
        return [names.get(cell, cell) for cell in table.iloc[:, 0]]
    values = table.astype(np.float64).to_numpy()
    if competition.target == "multi":  # a row changes if a probability crosses 0.5
        return [" ".join(classes[row >= 0.5]) or "no label" for row in values]
    return list(classes[values.argmax(1)])
