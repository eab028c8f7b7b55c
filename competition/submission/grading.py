"""Score a submission against the local private solution, and count every opening of the solution."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from competition.config.errors import UserError
from competition.data.competition import Competition
from competition.ensemble.metrics import metric_named
from competition.submission import ledger
from competition.submission.format import read_predictions


@dataclass(frozen=True)
class Grade:
    public: float
    private: float
    public_rows: int
    private_rows: int
    looks: int  # how often the solution was opened, including this time


def grade(submission: Path, solution: Path, competition: Competition, book: Path, earlier_looks: Path) -> Grade:
    """Public and private score, as Kaggle would show them.

    solution: CSV with id, label, usage (Public or Private). label: the class number; multi-label: the list of labels, as in
    a submission of lists, separated by blanks; regression: the number.
    book: the ledger. Each opening of the solution is recorded in it beforehand: a score that is read often becomes a
    training signal and is no longer an estimate.  earlier_looks: see ledger.looks_at_solution.
    """
    header, ids, cells = read_predictions(submission)
    expected = [competition.id_column, *competition.prediction_columns]
    if header != expected:
        raise UserError(f"{submission} has the header {','.join(header)}, expected {','.join(expected)}")
    predicted = dict(zip(ids, cells))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    ledger.append(book, ledger.Look(competition.name, submission.name, now))
    looks = ledger.looks_at_solution(book, competition.name, earlier_looks)
    solution_rows = _solution(solution)
    missing, extra = solution_rows.keys() - predicted.keys(), predicted.keys() - solution_rows.keys()
    if missing or extra or len(predicted) != len(ids):
        raise UserError(
            f"{submission}: {len(missing)} ids of the solution are missing, {len(extra)} are unknown, "
            f"{len(ids) - len(predicted)} are doubled; each id is expected once"
        )
    parts = {
        part: [name for name, (_, usage) in solution_rows.items() if usage == part] for part in ("Public", "Private")
    }
    scores = {part: _score(names, predicted, solution_rows, competition) for part, names in parts.items()}
    return Grade(scores["Public"], scores["Private"], len(parts["Public"]), len(parts["Private"]), looks)


def _score(
    names: list[str],
    predicted: Mapping[str, list[str]],
    solution_rows: Mapping[str, tuple[str, str]],
    competition: Competition,
) -> float:
    metric = metric_named(competition.metric)
    if not names:
        return float("nan")
    texts = [solution_rows[name][0] for name in names]
    labels = label_sets(texts, " ", competition) if competition.target == "multi" else _numbers(texts, competition)
    if competition.target == "multi" and competition.is_label_list:
        lists = [predicted[name][0] for name in names]
        return metric.display(metric.evaluate(labels, label_sets(lists, competition.list_separator, competition)))
    if competition.predicts != "label" or competition.target == "multi":
        values = np.array([predicted[name] for name in names], dtype=np.float64)
        output = values == 1 if competition.predicts == "label" else values
        return metric.display(metric.evaluate(labels, output))
    numbers = {value: number for number, value in enumerate(competition.label_values)}
    unknown = [predicted[name][0] for name in names if predicted[name][0] not in numbers]
    if unknown:
        raise UserError(f"{len(unknown)} predicted labels are none of the competition's: {', '.join(unknown[:3])}")
    decided = np.array([numbers[predicted[name][0]] for name in names])
    return metric.display(metric.evaluate(labels, decided, len(competition.classes)))


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


def _numbers(texts: list[str], competition: Competition) -> np.ndarray:
    """(N,) int class numbers, or (N,) float64 values of a regression."""
    return np.array(texts, np.float64) if competition.target == "regression" else np.array([int(one) for one in texts])


def _solution(path: Path) -> dict[str, tuple[str, str]]:
    if not path.is_file():
        raise UserError(f"{path} is missing: only competitions made here have a solution; `make submit` asks Kaggle")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or set(rows[0]) != {"id", "label", "usage"}:
        raise UserError(f"{path} holds {list(rows[0]) if rows else 'no rows'}, expected the columns id, label, usage")
    return {row["id"]: (row["label"], row["usage"]) for row in rows}
