"""The report's section on errors of multi-label and regression competitions."""

from collections.abc import Sequence

import numpy as np

from competition.ensemble.curves import auc, average_precision
from competition.report.page import Section, Table, Text

SOURCE = "blend/honest_oof.npz, blend/honest_oof.csv · make predict"
PARTS = 5  # of the rows of a regression, by value
LEFT_OUT = "Confusions, calibration and the most confident errors are shown for single labels only."


def labels_section(targets: np.ndarray, decided: np.ndarray, scores: np.ndarray, names: Sequence[str]) -> Section:
    """Scores of each label.  targets, decided: (N, C) bool.  scores: (N, C) probabilities, or ranks."""
    right = int((targets == decided).all(1).sum())
    rows = []
    for c, name in enumerate(names):
        hits, chosen, actual = (int(one.sum()) for one in (targets[:, c] & decided[:, c], decided[:, c], targets[:, c]))
        figures = [2 * hits / max(chosen + actual, 1), hits / max(chosen, 1), hits / max(actual, 1)]
        curves = ["–", "–"]
        if 0 < actual < len(targets):
            weights = np.ones((1, len(targets)))
            curves = [f"{curve(targets[:, c], scores[:, c], weights)[0]:.4f}" for curve in (average_precision, auc)]
        rows.append((figures[0], [name, *(f"{one:.4f}" for one in figures), *curves, f"{actual:,}", f"{chosen:,}"]))
    rows.sort(key=lambda row: row[0])
    columns = ["label", "F1", "precision", "recall", "average precision", "AUC", "rows with it", "predicted"]
    note = "The lowest F1 first. A label that no row has, or every row, has neither average precision nor AUC."
    text = (
        f"All labels are right in {right:,} of {len(targets):,} rows, by chains fitted without their fold. {LEFT_OUT}"
    )
    return Section("classes", "Labels", SOURCE, [Text([text]), Table(columns, [row for _, row in rows], note=note)])


def values_section(targets: np.ndarray, values: np.ndarray) -> Section:
    """Errors of a regression in fifths of the rows.  targets: (N,) float.  values: (N, 1)."""
    errors, rows = values[:, 0].astype(np.float64) - targets, []
    for part in np.array_split(np.argsort(targets, kind="stable"), min(PARTS, len(targets))):
        low, high, error = targets[part].min(), targets[part].max(), errors[part]
        figures = [np.sqrt((error**2).mean()), np.abs(error).mean(), error.mean()]
        rows.append([f"{low:.4g} to {high:.4g}", *(f"{one:.4g}" for one in figures), f"{len(part):,}"])
    columns = ["value", "RMSE", "MAE", "mean error", "rows"]
    text = f"Errors of chains fitted without the row's fold, in parts of the rows by value. {LEFT_OUT}"
    return Section("classes", "Errors", SOURCE, [Text([text]), Table(columns, rows)])
