"""Score a submission against the local private solution, and count every opening of the solution."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from competition.config.errors import UserError, first_few
from competition.data.competition import Competition
from competition.ensemble.metrics import metric_named
from competition.submission import ledger
from competition.submission.format import read_predictions

WITHOUT_SOLUTION = (
    "its estimate is the honest score (`make report`). To score it here, put the answers into competition.source as "
    "private/solution.csv with the columns id and label, then `make download grade`"
)


@dataclass(frozen=True)
class Grade:
    public: float
    private: float
    public_rows: int
    private_rows: int
    looks: int  # how often the solution was opened, including this time


def grade(submission: Path, solution: Path, competition: Competition, book: Path, earlier_looks: Path) -> Grade:
    """Public and private score, as Kaggle would show them.

    solution: CSV with id, label (as in the training table, or a class number), and optionally usage (Public or Private;
    without it, all rows are private).
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
    solution_rows = _solution(solution, competition)
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
    solution_rows: Mapping[str, tuple[int, str]],
    competition: Competition,
) -> float:
    metric = metric_named(competition.metric)
    if not names:
        return float("nan")
    labels = np.array([solution_rows[name][0] for name in names])
    if competition.predicts == "probabilities":
        return metric.display(metric.evaluate(labels, np.array([predicted[name] for name in names], dtype=np.float64)))
    numbers = {value: number for number, value in enumerate(competition.label_values)}
    unknown = [predicted[name][0] for name in names if predicted[name][0] not in numbers]
    if unknown:
        raise UserError(f"{len(unknown)} predicted labels are none of the competition's: {', '.join(unknown[:3])}")
    decided = np.array([numbers[predicted[name][0]] for name in names])
    return metric.display(metric.evaluate(labels, decided, len(competition.classes)))


def _solution(path: Path, competition: Competition) -> dict[str, tuple[int, str]]:
    """Id -> (class number, usage)."""
    if not path.is_file():
        raise UserError(f"{path} is missing: only competitions made here have a solution; `make submit` asks Kaggle")
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows or set(rows[0]) not in ({"id", "label", "usage"}, {"id", "label"}):
        raise UserError(
            f"{path} holds {list(rows[0]) if rows else 'no rows'}, expected the columns id, label and, optionally, usage"
        )
    numbers = {str(number): number for number in range(len(competition.classes))}
    numbers |= {value: number for number, value in enumerate(competition.label_values)}
    unknown = [row["label"] for row in rows if row["label"] not in numbers]
    if unknown:
        raise UserError(
            f"{path}: {len(unknown)} labels are none of the competition's ({first_few(competition.label_values, 3)}): "
            f"{first_few(unknown, 3)}"
        )
    return {row["id"]: (numbers[row["label"]], row.get("usage") or "Private") for row in rows}
