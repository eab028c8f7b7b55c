"""Compare two submissions: changed rows, and the class changes of these rows."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from competition.config.errors import UserError, counted
from competition.prepare.adapter_types import Competition
from competition.submission.format import read_predictions


@dataclass(frozen=True)
class SubmissionDiff:
    """Differences between submissions A and B."""

    rows: int
    changed: tuple[tuple[str, str, str], ...]  # id, class in A, class in B; in A's order
    moves: tuple[tuple[str, str, int], ...]  # class in A, class in B, rows; the most frequent first
    # class, rows in A, rows in B; classes whose count changed, the largest change first
    counts: tuple[tuple[str, int, int], ...]
    largest_gap: float  # largest |A - B| of a probability; 0 between labels
    correlation: float  # of all probabilities (Pearson), NaN between labels

    @property
    def share(self) -> float:
        """Share of rows whose (most probable) class changed."""
        return len(self.changed) / self.rows


def compare_submissions(a: Path, b: Path, competition: Competition) -> SubmissionDiff:
    """Compare row by row, joined by id. A row of probabilities is changed if its most probable class is."""
    ids, labels_a, probs_a = _read(a, competition)
    ids_b, labels_b, probs_b = _read(b, competition)
    position = {name: n for n, name in enumerate(ids_b)}
    missing, extra = [name for name in ids if name not in position], set(ids_b) - set(ids)
    if missing or extra:
        raise UserError(
            f"{a.name} has {counted(len(missing), 'id')} that {b.name} lacks, and lacks {len(extra)} of its ids"
        )
    order = [position[name] for name in ids]
    labels_b = [labels_b[n] for n in order]
    changed = tuple((name, x, y) for name, x, y in zip(ids, labels_a, labels_b) if x != y)
    moves = Counter((x, y) for _, x, y in changed)
    in_a, in_b = Counter(labels_a), Counter(labels_b)
    counts = [(c, in_a[c], in_b[c]) for c in {**in_a, **in_b} if in_a[c] != in_b[c]]
    gap, correlation = 0.0, float("nan")
    if probs_a is not None and probs_b is not None:
        gap = float(np.abs(probs_a - probs_b[order]).max())
        correlation = float(np.corrcoef(probs_a.ravel(), probs_b[order].ravel())[0, 1])
    return SubmissionDiff(
        len(ids),
        changed,
        tuple((x, y, n) for (x, y), n in sorted(moves.items(), key=lambda item: (-item[1], item[0]))),
        tuple(sorted(counts, key=lambda c: (-abs(c[1] - c[2]), c[0]))),
        gap,
        correlation,
    )


def _read(path: Path, competition: Competition) -> tuple[list[str], list[str], np.ndarray | None]:
    """(ids, what is compared as text, probabilities or values or None).

    The text is the (most probable) class, the labels in a fixed order, or the number.
    """
    ids, cells = read_predictions(path, competition)
    if len(set(ids)) != len(ids) or not ids:
        raise UserError(
            f"{path} has {counted(len(ids), 'row')} with {len(set(ids))} ids; expected one or more rows, each id once"
        )
    if competition.is_label_list:
        separator = competition.list_separator
        return ids, [separator.join(sorted(row[0].split(separator))) for row in cells], None
    if competition.target == "multi" and competition.predicts == "label":
        return ids, [" ".join(row) for row in cells], None
    if competition.predicts == "label":
        names = dict(zip(competition.label_values, competition.classes))
        return ids, [names.get(row[0], row[0]) for row in cells], None
    try:
        probs = np.array(cells, dtype=np.float64)
    except ValueError as error:
        raise UserError(f"{path} holds cells that are no number: expected probabilities") from error
    if competition.target == "regression":
        return ids, [str(value) for value in probs[:, 0]], probs
    if competition.target == "multi":  # changed is a row in which a probability crosses 0.5
        names_of = np.array(competition.classes)
        return ids, [" ".join(names_of[row >= 0.5]) or "no label" for row in probs], probs
    return ids, [competition.classes[n] for n in probs.argmax(1)], probs
