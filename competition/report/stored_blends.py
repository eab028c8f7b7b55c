"""Cross-fitted outputs of the blends stored under blends/, and the training rows on which they can be compared."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import doubts_of, doubts_of_folds
from competition.ensemble.metrics import Metric, TargetKind
from competition.ensemble.stored_predictions import load_scores
from competition.prepare.prepared import Prepared
from competition.submission.ledger import Entry


@dataclass(frozen=True)
class SharedRows:
    """Training rows with an output of every blend that no blend was tuned on.

    ids: (N,) str.  labels: (N,) int, (N, C) bool of a multi-label competition, (N,) float of a regression.
    """

    ids: np.ndarray
    labels: np.ndarray
    unknown: int  # rows of all blends that are no longer in the index
    tuned: int  # rows excluded because they chose hyperparameters of a blend
    optimistic: tuple[str, ...]  # blends for which every row chose hyperparameters

    def notes(self) -> list[str]:
        """One sentence per kind of excluded rows."""
        choice = "hyperparameters of one of the blends were chosen on them"
        excluded = {"no longer in the prepared data": self.unknown, choice: self.tuned}
        notes = [f"{counted(count, 'row')} excluded: {reason}" for reason, count in excluded.items() if count]
        if self.optimistic:
            names = " and ".join(self.optimistic)
            notes.append(
                f"OPTIMISTIC: every fold chose hyperparameters of {names}, so no row is independent of that choice"
            )
        return notes


def shared_rows(folders: Sequence[Path], prepared: Prepared) -> SharedRows:
    """The rows on which the blends in these folders can be compared. Raises UserError if there are none."""
    index = prepared.part("train").set_index("id")
    tables = [read_table(folder) for folder in folders]
    ids = tables[0].index
    for table in tables[1:]:
        ids = ids.intersection(table.index)
    indexed = ids.intersection(index.index).sort_values()
    tuned = np.zeros(len(indexed), bool)
    for table in tables:
        tuned |= table["scored"].loc[indexed].to_numpy() == 0
    shared = indexed[~tuned]
    if not len(shared):
        names = ", ".join(folder.name for folder in folders)
        raise UserError(
            f"no training row can be used to compare {names}: of {len(ids):,} rows in all of them, {len(ids) - len(indexed):,} are not in "
            f"the prepared data and {tuned.sum():,} chose hyperparameters; `make predict` creates a blend of the current data"
        )
    labels = prepared.competition.targets.of(index["label"].loc[shared].to_numpy(np.int64))
    scores = {folder: json.loads((folder / "scores.json").read_text(encoding="utf-8")) for folder in folders}
    optimistic = tuple(folder.name for folder in folders if scores[folder].get("optimistic"))
    return SharedRows(shared.to_numpy(str), labels, len(ids) - len(indexed), int(tuned.sum()), optimistic)


def blend_text(folder: Path) -> str:
    """ "ecbba8980f68-1a2b3c (cnn, torch; honest macro_f1 0.9259; folds of torch unknown)"."""
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    kind, members = "DOUBTED" if doubts_of(scores) else "honest", Chain.load(folder / "chain.json").blend.weights
    score = f"{kind} {scores['metric']} {scores['honest']:.4f}"
    return f"{folder.name} ({'; '.join([', '.join(members), score, *doubts_of_folds(scores)])})"


def blends_of(blends: Path, file: str = "*") -> list[Path]:
    """The stored blends with their outputs that gave a submission file, such as ecbba8980f68 and ecbba8980f68-1a2b3c, or any.

    blends: folder of all.
    """
    stem = Path(file).stem
    patterns = (stem, f"{stem}-{'[0-9a-f]' * 6}") if file != "*" else ("[!.]*",)
    return [npz.parent for pattern in patterns for npz in sorted(blends.glob(f"{pattern}/honest_oof.npz"))]


def blend_of(blends: Path, entry: Entry) -> Path | None:
    """The stored blend of a ledger entry: of those with its file the newest with its metric, honest score and doubt; None = none."""
    for folder in sorted(blends_of(blends, entry.file), key=lambda folder: -folder.stat().st_mtime):
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        of_blend = (scores["metric"], scores["honest"], bool(doubts_of(scores)))
        if of_blend == (entry.metric, entry.honest_score, entry.is_doubted):
            return folder
    return None


def stored_output(folder: Path, ids: np.ndarray, metric: Metric, classes: int) -> np.ndarray:
    """(N,) int labels (multi-label: (N, C) bool) for a metric of labels, else (N, C) scores, in the order of `ids`.

    Cross-fitted.
    """
    if metric.needs_labels:
        output = stored_decisions(folder, ids, metric.target, classes)
        matches = output.shape[1] == classes if metric.target == "multi" else output.max() < classes
    else:
        output = load_scores(folder / "honest_oof.npz", ids)[1]
        matches = output.shape[1] == classes
    if not matches:
        raise UserError(f"{folder.name} has other classes than the {classes} of the prepared data; create it again")
    return output


def stored_labels(decided: np.ndarray, probs: np.ndarray, kind: TargetKind) -> np.ndarray:
    """The column `label` of honest_oof.csv: class numbers (multi-label: "0 3", "" for none), or values of a regression."""
    if kind == "regression":
        return probs[:, 0]
    if kind == "multi":
        return np.array([" ".join(map(str, np.flatnonzero(row))) for row in decided])
    return decided


def stored_decisions(folder: Path, ids: np.ndarray, kind: TargetKind, classes: int) -> np.ndarray:
    """The decided labels of honest_oof.csv in the order of `ids`: (N,) int, (N, C) bool, or (N,) values of a regression."""
    decided = read_table(folder)["label"].loc[ids]
    if kind == "multi":
        numbers = [[int(number) for number in str(text).split()] for text in decided]
        columns = max([classes, *(max(row) + 1 for row in numbers if row)])
        sets = np.zeros((len(numbers), columns), bool)
        for row, chosen in enumerate(numbers):
            sets[row, chosen] = True
        return sets
    return decided.to_numpy(np.float64 if kind == "regression" else np.int64)


def read_table(folder: Path) -> pd.DataFrame:
    """Columns label and scored (0: the row chose hyperparameters); indexed by id."""
    table = pd.read_csv(folder / "honest_oof.csv", dtype={"id": str}, keep_default_na=False)
    return table.set_index("id")
