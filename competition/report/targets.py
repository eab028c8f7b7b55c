"""The report's section on errors of multi-label and regression competitions."""

from collections.abc import Sequence

import numpy as np

from competition.config.errors import counted
from competition.ensemble.target_metrics import auc, average_precision
from competition.images.cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.charts import truth_chart
from competition.report.classes import HonestRows
from competition.report.page import Charts, Section, Sheet, Table, Text, Tile
from competition.report.pictures import no_pictures, row_pictures

SOURCE = "blend/honest_oof.npz, blend/honest_oof.csv · make predict"
PARTS = 5  # of the rows of a regression, by value
MOST_POINTS = 1000  # of the chart of truth and prediction
TILES = 32  # pictures of the worst rows


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
        everywhere = 2 * actual / (len(targets) + actual)
        cells = [name, f"{figures[0]:.4f}", f"{everywhere:.4f}", *(f"{one:.4f}" for one in figures[1:]), *curves]
        rows.append((figures[0], [*cells, f"{actual:,}", f"{chosen:,}"]))
    rows.sort(key=lambda row: row[0])
    columns = ["label", "F1", "F1 of every row", "precision", "recall", "average precision", "AUC", "rows with it"]
    columns.append("predicted")
    note = (
        "The lowest F1 first. F1 of every row: what the label's F1 is if every row gets it, which looks at no image. A label that no "
        "row has, or every row, has neither average precision nor AUC."
    )
    text = f"All labels are right in {right:,} of {len(targets):,} rows, by chains fitted without their fold."
    return Section("classes", "Labels", SOURCE, [Text([text]), Table(columns, [row for _, row in rows], note=note)])


def values_section(targets: np.ndarray, values: np.ndarray) -> Section:
    """Errors of a regression in fifths of the rows.  targets: (N,) float.  values: (N, 1)."""
    predicted, rows = values[:, 0].astype(np.float64), []
    errors, mean = predicted - targets, float(targets.mean())
    for part in np.array_split(np.argsort(targets, kind="stable"), min(PARTS, len(targets))):
        low, high, error = targets[part].min(), targets[part].max(), errors[part]
        figures = [np.sqrt((error**2).mean()), np.sqrt(((mean - targets[part]) ** 2).mean())]
        figures += [np.abs(error).mean(), error.mean()]
        rows.append([f"{low:.4g} to {high:.4g}", *(f"{one:.4g}" for one in figures), f"{len(part):,}"])
    columns = ["value", "RMSE", "RMSE of the mean", "MAE", "mean error", "rows"]
    text = "Errors of chains fitted without the row's fold, in parts of the rows by value."
    shown = np.argsort(targets, kind="stable")[
        np.linspace(0, len(targets) - 1, min(MOST_POINTS, len(targets))).astype(int)
    ]
    explained = 1 - float((errors**2).sum()) / max(float(((targets - mean) ** 2).sum()), 1e-300)
    note = (
        f"Across: the true value; up: the prediction. Dashed: equality; dotted: the mean of all rows ({mean:.4g}), looking at no image. "
        f"The predictions explain {explained:.1%} of the variance"
        + (", so they are worse than that mean." if explained < 0 else ".")
        + (f" {len(shown):,} of {len(targets):,} rows, evenly over the values." if len(shown) < len(targets) else "")
    )
    charts = Charts([truth_chart(targets[shown], predicted[shown], mean)], note)
    return Section("classes", "Errors", SOURCE, [Text([text]), charts, Table(columns, rows)])


def worst_section(rows: HonestRows, prepared: Prepared, pixels: Pixels | None, has_networks: bool) -> Section | None:
    """The rows with the most wrong labels, or with the largest errors of a regression, as pictures.

    rows: of `classes.honest_rows`.  pixels: (N, H, W, 3) uint8 of the training rows in index order; None leaves them out.
    has_networks: some member is trained here.
    """
    ids, targets, decided, scores = rows
    is_multi = prepared.competition.targets.kind == "multi"
    if is_multi:
        wrong = decided != targets
        # Of rows with as many wrong labels, the one whose labels are the least probable comes first.
        doubt = np.where(wrong, np.abs(scores - targets), 0).max(1)
        worst = np.lexsort((-doubt, -wrong.sum(1)))[: min(TILES, int(wrong.any(1).sum()))]
    else:
        worst = np.argsort(-np.abs(scores[:, 0] - targets), kind="stable")[:TILES]
    if not len(worst):
        return None
    names, tiles = prepared.competition.classes, []
    for n, image in zip(worst, row_pictures(prepared, ids[worst], pixels), strict=True):
        if is_multi:
            extra, missing = (np.flatnonzero(one) for one in (decided[n] & ~targets[n], targets[n] & ~decided[n]))
            lines = [f"✕ {', '.join(f'{names[c]} {scores[n, c]:.2f}' for c in extra)}"] if len(extra) else []
            lines += [f"lacks {', '.join(f'{names[c]} {scores[n, c]:.2f}' for c in missing)}"] if len(missing) else []
        else:
            lines = [f"is {targets[n]:.5g}", f"predicted {scores[n, 0]:.5g}"]
        tiles.append(Tile(*image, [*lines, str(ids[n])]))
    note = (
        f"{counted(len(tiles), 'row')} with the most wrong labels: labels that it does not have (✕) and that it lacks, each with its score."
        if is_multi
        else f"{counted(len(tiles), 'row')} with the largest errors."
    )
    note += f" {no_pictures(has_networks)}" if pixels is None else ""
    return Section("errors", "Largest errors", f"{SOURCE}; cache", [Sheet(tiles, note)])
