"""Score a submission against the local private solution, and count every opening of the solution."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.config.errors import UserError, first_few
from competition.ensemble.metrics import Metric
from competition.ensemble.target_metrics import UndefinedScore
from competition.ensemble.trivial import trivial_score
from competition.prepare.adapter_types import Competition
from competition.prepare.adapters.label_cells import class_labels
from competition.prepare.adapters.tables import read_csv
from competition.submission import ledger
from competition.submission.submission_csv import read_predictions, require_ids

WITHOUT_SOLUTION = (
    "its estimate is the honest score (`make report`). To score it here, put the answers into competition.source as "
    "private/solution.csv with the columns id and label, then `make download grade`"
)


@dataclass(frozen=True)
class Grade:
    public: float | None  # None: no rows, or the metric is undefined on them
    private: float | None
    public_rows: int
    private_rows: int
    public_trivial: float | None  # scores of the trivial baseline
    private_trivial: float | None
    trivial: str  # what it answers: the most frequent class for every row, of the training rows
    solution_accesses: int  # how often the solution was opened, including this time


def grade(
    submission: Path,
    solution: Path,
    competition: Competition,
    metric: Metric,
    train_labels: np.ndarray,
    ledger_path: Path,
) -> Grade:
    """Public and private score, as Kaggle would show them, beside those of the trivial baseline of the training rows.

    solution: CSV with id, label, and optionally usage (Public, Private or Ignored; without it, all rows are private).
    label: as in the training table, or a class number; multi-label: the list of labels, separated as in a submission of lists or by
    blanks; regression: the number.

    ledger_path: each opening of the solution is recorded in it beforehand: a score that is read often becomes a
    training signal and is no longer an estimate.
    """
    predictions = read_predictions(submission, competition)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    ledger.append(ledger_path, ledger.SolutionAccess(competition.name, submission.name, now))
    accesses = ledger.of_competition(ledger.read(ledger_path), competition.name).solution_accesses
    ids, usage, labels = _solution(solution, competition)
    require_ids(solution, ids, predictions.index, submission)
    output = _output(predictions.loc[ids], competition)
    answer, values, classes = "", dict[str, Any](), len(competition.classes)
    for part in ("public", "private"):
        rows, score = np.flatnonzero(usage == part), np.nan
        with suppress(UndefinedScore):
            score = metric.display(metric.evaluate(labels[rows], output[rows], classes)) if len(rows) else np.nan
        values |= {part: None, f"{part}_rows": len(rows), f"{part}_trivial": None}
        if np.isfinite(score):
            values[part] = score
            answer, values[f"{part}_trivial"] = trivial_score(labels[rows], metric, classes, train_labels)
    return Grade(**values, trivial=answer, solution_accesses=len(accesses))


def _output(predictions: pd.DataFrame, competition: Competition) -> np.ndarray:
    """What the metric scores: (N,) int, (N, C) bool label sets, or (N, C) probabilities or values."""
    if competition.is_label_list:
        return _label_sets(predictions.iloc[:, 0].tolist(), competition.list_separator, competition)
    if competition.predicts == "label" and competition.target != "multi":
        return np.array(class_labels(predictions.iloc[:, 0], competition.label_values, "the submission"))
    values = predictions.astype(np.float64).to_numpy()
    return values == 1 if competition.predicts == "label" else values


def _label_sets(lists: list[str], separator: str, competition: Competition) -> np.ndarray:
    """(N, C) bool of lists of label values. Raises UserError for unknown labels."""
    number = {value: n for n, value in enumerate(competition.label_values)}
    sets = np.zeros((len(lists), len(number)), bool)
    for row, text in enumerate(lists):
        labels = [label for label in text.split(separator) if label]
        unknown = [label for label in labels if label not in number]
        if unknown:
            raise UserError(f"label {unknown[0]!r} is none of the competition's: {first_few(number, 3)}")
        sets[row, [number[label] for label in labels]] = True
    return sets


def _solution(path: Path, competition: Competition) -> tuple[pd.Series, np.ndarray, np.ndarray]:
    """(Ids, usages in small letters, labels): (N,) int labels, (N, C) bool label sets or (N,) float64 values."""
    table, columns = read_csv(path), competition.prediction_columns
    names = {competition.id_column: "id"} | ({columns[0]: "label"} if len(columns) == 1 else {})
    table = table.rename(columns={old: new for old, new in names.items() if new not in table})
    if {*table.columns} - {"usage"} != {"id", "label"}:
        raise UserError(
            f"{path} holds {first_few(table.columns)}, expected the columns id, label and, optionally, usage"
        )
    usage = np.array([text.strip().lower() or "private" for text in table.get("usage", [""] * len(table))])
    if unknown := sorted({*usage} - {"public", "private", "ignored"}):
        raise UserError(f"{path} has the usage {unknown[0]!r}, expected Public, Private or Ignored in every row")
    texts, known = table["label"], {*competition.label_values}
    if competition.target == "regression":
        try:
            return table["id"], usage, texts.astype(np.float64).to_numpy()
        except ValueError as error:
            raise UserError(f"{path}: {error}; expected the number of each row in the column label") from None
    if competition.target == "multi":
        separator = competition.list_separator
        lists = [text if separator in text or text in known else separator.join(text.split()) for text in texts]
        return table["id"], usage, _label_sets(lists, separator, competition)
    by_number = {str(number): value for number, value in enumerate(competition.label_values)}
    of_class = texts.map(lambda text: text if text in known else by_number.get(text, text))
    return table["id"], usage, np.array(class_labels(of_class, competition.label_values, str(path)))
