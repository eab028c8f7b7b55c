"""Score a submission against the local private solution, and count every opening of the solution."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from competition.config.errors import UserError, counted, first_few
from competition.ensemble.metrics import metric_named
from competition.ensemble.target_metrics import UndefinedScore
from competition.ensemble.trivial import trivial_score
from competition.prepare.adapter_types import Competition
from competition.submission import ledger
from competition.submission.format import read_predictions

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
    solution_accesses: int  # how often the solution was opened, including this time
    trivial: str = ""  # what the trivial baseline answers: the most frequent class for every row, of the training rows
    public_trivial: float | None = None  # its scores
    private_trivial: float | None = None


def grade(
    submission: Path, solution: Path, competition: Competition, train_labels: np.ndarray, ledger_path: Path
) -> Grade:
    """Public and private score, as Kaggle would show them.

    solution: CSV with id, label, and optionally usage (Public, Private or Ignored; without it, all rows are private).
    label: as in the training table, or a class number; multi-label: the list of labels, separated as in a submission of lists or by
    blanks; regression: the number. Instead of label, it may have the columns of a submission, several with 0 or 1 in each.
    train_labels: of the training rows, on which the trivial baseline is fitted: it knows no solution either.
    ledger_path: each opening of the solution is recorded in it beforehand: a score that is read often becomes a
    training signal and is no longer an estimate.
    """
    columns = _columns_of(solution, competition)
    ids, cells = read_predictions(submission, competition)
    predicted = dict(zip(ids, cells))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    ledger.append(ledger_path, ledger.SolutionAccess(competition.name, submission.name, now))
    accesses = ledger.count_solution_accesses(ledger_path, competition.name)
    usages, labels = _solution(solution, columns, competition)
    missing, extra = usages.keys() - predicted.keys(), predicted.keys() - usages.keys()
    if missing or extra or len(predicted) != len(ids):
        raise UserError(
            f"{submission} lacks {counted(len(missing), 'id')} of the solution, {solution} lacks {counted(len(extra), 'id')} of the "
            f"submission, {counted(len(ids) - len(predicted), 'id')} of it doubled; each is expected once in both"
        )
    names, usage = np.array(list(usages)), np.array(list(usages.values()))
    parts = {part: np.flatnonzero(usage == part) for part in ("Public", "Private")}
    scores: dict[str, float | None] = {}
    for part, rows in parts.items():
        scores[part] = _score(labels[rows], [predicted[name] for name in names[rows]], competition)
    scored = {part: rows for part, rows in parts.items() if scores[part] is not None}
    metric, classes = metric_named(competition.metric), len(competition.classes)
    baselines = {part: trivial_score(labels[rows], metric, classes, train_labels) for part, rows in scored.items()}
    answer = next((answer for answer, _ in baselines.values()), "")
    public, private = (baselines.get(part, ("", None))[1] for part in parts)
    return Grade(
        scores["Public"],
        scores["Private"],
        len(parts["Public"]),
        len(parts["Private"]),
        accesses,
        answer,
        public,
        private,
    )


def _score(labels: np.ndarray, cells: list[list[str]], competition: Competition) -> float | None:
    """Score of some rows in the metric's usual sign; None if it is undefined on them or there are none.

    labels: of `_solution`.  cells: of the submission.  Raises UserError for unknown labels.
    """
    if not cells:
        return None
    metric = metric_named(competition.metric)
    if competition.is_label_list:
        output = label_sets([row[0] for row in cells], competition.list_separator, competition)
    elif competition.predicts != "label" or competition.target == "multi":
        values = np.array(cells, dtype=np.float64)
        output = values == 1 if competition.predicts == "label" else values
    else:
        numbers = {value: number for number, value in enumerate(competition.label_values)}
        unknown = [row[0] for row in cells if row[0] not in numbers]
        if unknown:
            raise UserError(
                f"{counted(len(unknown), 'predicted label')} outside the competition's: {', '.join(unknown[:3])}"
            )
        output = np.array([numbers[row[0]] for row in cells])
    try:
        score = metric.display(metric.evaluate(labels, output, len(competition.classes)))
    except UndefinedScore:
        return None
    return score if np.isfinite(score) else None


def label_sets(lists: list[str], separator: str, competition: Competition) -> np.ndarray:
    """(N, C) bool of lists of label values. Raises UserError for unknown labels."""
    number = {value: n for n, value in enumerate(competition.label_values)}
    sets = np.zeros((len(lists), len(number)), bool)
    for row, text in enumerate(lists):
        labels = [label for label in text.split(separator) if label]
        unknown = [label for label in labels if label not in number]
        if unknown:
            raise UserError(f"label {unknown[0]!r} is none of the competition's: {', '.join(list(number)[:3])}, ...")
        sets[row, [number[label] for label in labels]] = True
    return sets


def _columns_of(path: Path, competition: Competition) -> list[str]:
    """The columns of a solution as id, label and usage; ids and labels may have the names that they have in a submission.

    A solution may have the several columns of a submission in place of label.

    Raises UserError if one is missing. Only the first line is read, which says nothing about an answer.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: only competitions made here have a solution; `make submit` asks Kaggle")
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file), [])
    of_submission = {competition.id_column: "id"}
    if len(competition.prediction_columns) == 1:
        of_submission[competition.prediction_columns[0]] = "label"
    columns = [of_submission.get(name, name) for name in header]
    of_answers = set(columns) - {"id", "usage"}
    is_known = of_answers == {"label"} or (of_answers == {*competition.prediction_columns} and len(of_answers) > 1)
    if "id" not in columns or not is_known or len(set(columns)) != len(columns):
        held = ", ".join(header) or "nothing"
        of_submission_text = first_few([competition.id_column, *competition.prediction_columns])
        raise UserError(
            f"{path} holds {held}, expected the columns id, label and, optionally, usage; or those of a submission "
            f"({of_submission_text}), with 0 or 1 where there are several"
        )
    return columns


def _solution(path: Path, columns: Sequence[str], competition: Competition) -> tuple[dict[str, str], np.ndarray]:
    """Id -> usage, and the labels in the same order: (N,) int, (N, C) bool label sets or (N,) float64 values."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file, columns))[1:]
    usages = {row["id"]: (row.get("usage") or "Private").strip().capitalize() for row in rows}
    if unknown := sorted(set(usages.values()) - {"Public", "Private", "Ignored"}):
        raise UserError(f"{path} has the usage {unknown[0]!r}, expected Public, Private or Ignored in every row")
    if "label" not in columns:
        cells = {row["id"]: [row[name] for name in competition.prediction_columns] for row in rows}
        return usages, _zero_one_labels(path, cells, competition)
    texts = {row["id"]: row["label"] for row in rows}
    return usages, _labels(path, list(texts.values()), competition)


def _zero_one_labels(path: Path, cells: dict[str, list[str]], competition: Competition) -> np.ndarray:
    """The labels of columns with 0 or 1 for each label.  cells: by id."""
    texts = np.array(list(cells.values()), str).reshape(len(cells), -1)
    is_one = np.isin(texts, ("1", "1.0"))
    is_wrong = (~is_one & ~np.isin(texts, ("0", "0.0"))).any(1)
    wanted = "0 or 1 in every column"
    if competition.target != "multi":
        is_wrong |= is_one.sum(1) != 1
        wanted = "1 in one column and 0 in the others"
    if is_wrong.any():
        wrong = np.array(list(cells))[is_wrong]
        raise UserError(f"{path}: {counted(len(wrong), 'row')} not with {wanted}, as expected: {first_few(wrong, 3)}")
    return is_one if competition.target == "multi" else is_one.argmax(1)


def _labels(path: Path, texts: list[str], competition: Competition) -> np.ndarray:
    if competition.target == "multi":
        separator, one_label = competition.list_separator, {*competition.label_values}
        lists = [text if separator in text or text in one_label else separator.join(text.split()) for text in texts]
        return label_sets(lists, separator, competition)
    if competition.target == "regression":
        try:
            return np.array(texts, np.float64)
        except ValueError as error:
            raise UserError(f"{path}: {error}; expected the number of each row in the column label") from None
    numbers = {str(number): number for number in range(len(competition.classes))}
    numbers |= {value: number for number, value in enumerate(competition.label_values)}
    unknown = [text for text in texts if text not in numbers]
    if unknown:
        raise UserError(
            f"{path}: {counted(len(unknown), 'label')} outside the competition's ({first_few(competition.label_values, 3)}): "
            f"{first_few(unknown, 3)}"
        )
    return np.array([numbers[text] for text in texts])
