"""Blocks for the report's first screen, the section on labels, and the worst rows as pictures."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from competition.config.errors import counted
from competition.ensemble.metrics import TargetKind
from competition.ensemble.target_metrics import auc, average_precision
from competition.input_pipeline.decoded_cache import Pixels
from competition.prepare.index import has_images
from competition.prepare.prepared import Prepared
from competition.report.charts import MOST_POINTS, confusion_chart, legend, truth_chart
from competition.report.classes import SOURCE, HonestRows, class_scores, confusion, most_confident_errors
from competition.report.page import Block, Charts, Section, Sheet, SideBySide, Table, Text
from competition.report.pictures import MAX_SIZE, NO_PICTURES, row_tiles
from competition.report.svg import DASHED, Chart, shortened

WORST_NOTES: dict[TargetKind, str] = {
    "single": (
        "that are wrong with the highest score: the predicted class and its score, the label and its score, the id. Some may be wrong "
        "labels (`make label-issues` looks for them)."
    ),
    "multi": "with the most wrong labels: labels that it does not have (✕) and that it lacks, each with its score.",
    "regression": "with the largest errors.",
}
TILES = 32  # pictures of the worst rows
GROUPS, OF_GROUP = 3, 2  # of the first screen: classes with pictures, pictures of each
MOST_CLASSES, MATRIX_WIDTH = 12, 310.0  # of its matrix; of more classes those with the most wrong rows
SHOWN = 6  # labels with curves
POINTS = 150  # of a curve
NOTE = (
    "Precision: the share of the rows predicted to have the label that have it; recall: the share of the rows with the label that are "
    "predicted to have it; F1: their harmonic mean. Each curve is of one label at every threshold. Dots in the left chart: the "
    "predictions of the blend, at thresholds chosen without the row's fold, or at 0.5 if it has none; in the right chart: the highest "
    "F1 of these rows, which is optimistic."
)


class Curve(NamedTuple):
    """x, y: of one label, by falling threshold.  tooltip: of its point."""

    name: str
    tooltip: str
    x: np.ndarray
    y: np.ndarray
    point: tuple[float, float]


def labels_section(targets: np.ndarray, decided: np.ndarray, scores: np.ndarray, names: Sequence[str]) -> Section:
    """Scores of each label.  targets, decided: (N, C) bool.  scores: (N, C) probabilities."""
    right, count, rows = int((targets == decided).all(1).sum()), len(targets), []
    label_scores = class_scores(targets, decided, len(names))
    for score in label_scores:
        c = score.number
        figures = [score.f1, 2 * score.rows / (count + score.rows), score.precision, score.recall]
        if 0 < score.rows < count:
            weights = np.ones((1, count))
            figures += [curve(targets[:, c], scores[:, c], weights)[0] for curve in (average_precision, auc)]
        cells = [f"{one:.4f}" for one in figures] + ["–"] * (6 - len(figures))
        rows.append([names[c], *cells, f"{score.rows:,}", f"{score.predicted:,}"])
    columns = ["label", "F1", "F1 of every row", "precision", "recall", "average precision", "AUC", "rows with it"]
    note = (
        "The lowest F1 first. F1 of every row: what the label's F1 is if every row gets it, which looks at no row. A label that no "
        "row has, or every row, has neither average precision nor AUC."
    )
    text = f"All labels are right in {right:,} of {count:,} rows, by blends fitted without their fold."
    blocks: list[Block] = [Text([text]), Table([*columns, "predicted"], rows, note=note)]
    if charts := label_charts(targets, decided, scores, names, [score.number for score in label_scores]):
        blocks.append(charts)
    return Section("classes", "Labels", SOURCE, blocks)


def label_charts(
    targets: np.ndarray, decided: np.ndarray, scores: np.ndarray, names: Sequence[str], worst: Sequence[int]
) -> Charts | None:
    """Curves of the first of the labels that some row has, and some has not; None if there is none.

    targets, decided: (N, C) bool.  scores: (N, C).  worst: numbers of all labels, the lowest F1 first.
    """
    shown = [c for c in worst if 0 < targets[:, c].sum() < len(targets)][:SHOWN]
    if not shown:
        return None
    from sklearn.metrics import precision_recall_curve

    names_shown = [shortened(names[c], 24) for c in shown]
    by_recall, by_threshold = list[Curve](), list[Curve]()
    for c, name in zip(shown, names_shown, strict=True):
        # The highest threshold first, without the point of recall 0, which has no threshold.
        curve = precision_recall_curve(targets[:, c], scores[:, c])
        precisions, recalls, thresholds = curve[0][-2::-1], curve[1][-2::-1], curve[2][::-1]
        hits = float((targets[:, c] & decided[:, c]).sum())
        precision, recall = hits / max(int(decided[:, c].sum()), 1), hits / int(targets[:, c].sum())
        text = f"{name}: precision {precision:.3f}, recall {recall:.3f}"
        by_recall.append(Curve(name, text, recalls, precisions, (recall, precision)))
        f1 = 2 * precisions * recalls / np.maximum(precisions + recalls, 1e-12)
        best = int(f1.argmax())
        text = f"{name}: highest F1 {f1[best]:.3f} at threshold {thresholds[best]:.3f}"
        by_threshold.append(Curve(name, text, thresholds, f1, (thresholds[best], f1[best])))
    drawings = [
        legend(names_shown),
        curves_chart("precision", "recall", by_recall),
        curves_chart("F1", "threshold of the label's score", by_threshold),
    ]
    many = f" Of {len(names)} labels the {len(shown)} with the lowest F1." if len(shown) < len(names) else ""
    return Charts(drawings, NOTE + many, "Precision, recall and thresholds")


def curves_chart(title: str, across: str, curves: Sequence[Curve]) -> Markup:
    """One curve of each label with its point; the colours are those of `charts.legend`."""
    drawing = Chart((372, 330), (46, 14, 22, 44), (0, 1), (0, 1.02))
    drawing.axes(x=5, y=5, title=title, across=across)
    for n, curve in enumerate(curves):
        kept = np.unique(np.linspace(0, len(curve.x) - 1, min(POINTS, len(curve.x))).astype(int))
        dashes = {"stroke_dasharray": DASHED} if n % 2 else {}
        drawing.line(curve.x[kept], curve.y[kept], f"c{n}", "curve", curve.name, stroke_width=1.8, **dashes)
        drawing.dots(*curve.point, f"c{n}", "dot", [curve.tooltip], stroke="card", stroke_width=1.5)
    return drawing.markup(f"{title} against the {across}; {'; '.join(curve.tooltip for curve in curves)}")


def wrong_rows(rows: HonestRows, kind: TargetKind, most: int) -> np.ndarray:
    """Positions of at most `most` rows, the worst first: the most confident errors, the rows with the most wrong labels, or with the
    largest errors of a regression.

    Empty if all labels of all rows are right.
    """
    _, targets, decided, scores = rows
    if kind == "single":
        return most_confident_errors(targets, decided, scores, most)
    if kind == "regression":
        return np.argsort(-np.abs(scores[:, 0] - targets), kind="stable")[:most]
    wrong = decided != targets
    # Of rows with as many wrong labels, the one whose labels are the least probable comes first.
    doubt = np.where(wrong, np.abs(scores - targets), 0).max(1)
    return np.lexsort((-doubt, -wrong.sum(1)))[: min(most, int(wrong.any(1).sum()))]


def row_lines(rows: HonestRows, n: int, names: Sequence[str], kind: TargetKind) -> list[str]:
    """What is wrong with row n, and its id, as lines below its picture."""
    ids, targets, decided, scores = rows
    if kind == "regression":
        # Five digits, and no exponent where it can be read without.
        true_value, predicted = (
            f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.5g}" for value in (targets[n], scores[n, 0])
        )
        return [f"is {true_value}", f"predicted {predicted}", str(ids[n])]
    extra, missing, lacks = np.array([decided[n]]), np.array([targets[n]]), "is"
    if kind == "multi":
        extra, missing = (np.flatnonzero(one) for one in (decided[n] & ~targets[n], targets[n] & ~decided[n]))
        lacks = "lacks"
    parts = {"✕": extra, lacks: missing}
    lines = [
        f"{word} {', '.join(f'{names[int(c)]} {scores[n, c]:.2f}' for c in labels)}"
        for word, labels in parts.items()
        if len(labels)
    ]
    return [*lines, str(ids[n])]


def glance_blocks(rows: HonestRows, prepared: Prepared, pixels: Pixels | None) -> list[Block]:
    """For the first screen: the confusion matrix, the labels with the lowest F1, or predictions against the truth; and pictures of
    wrong rows, of the worst classes or with the largest errors.
    """
    competition, groups = prepared.competition, list[tuple[str, np.ndarray]]()
    kind, names = competition.targets.kind, competition.classes
    _, labels, predicted, scores = rows
    if kind == "regression":
        note = f"Dashed: equality; dotted: the mean of all rows. At most {MOST_POINTS:,} rows, evenly over the values."
        drawing = truth_chart(labels, scores[:, 0].astype(np.float64), float(labels.mean()))
        first: Block = Charts([drawing], note)
        groups.append(("the true value and the prediction", wrong_rows(rows, kind, GROUPS * OF_GROUP)))
    else:
        class_figures = class_scores(labels, predicted, len(names))
        if kind == "single":
            matrix = confusion(labels, predicted, len(names))
            mistakes = matrix.sum(0) + matrix.sum(1) - 2 * np.diag(matrix)
            shown = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_CLASSES])
            note = "Down: the class; across: what it is taken for. Blue: right, orange: wrong."
            if len(shown) < len(names):
                note += f" Of {len(names)} classes the {len(shown)} with the most confusions; all are in the section Classes."
            drawing = confusion_chart(matrix[np.ix_(shown, shown)], [names[int(n)] for n in shown], MATRIX_WIDTH)
            first = Charts([drawing], note)
        else:
            lowest = [[names[one.number], f"{one.f1:.2f}", f"{one.rows:,}"] for one in class_figures[:MOST_CLASSES]]
            first = Table(["label", "F1", "rows with it"], lowest, title="The labels with the lowest F1")
        for score in [one for one in class_figures if one.f1 < 1][:GROUPS]:
            c = score.number
            actual, decided = (one[:, c] if kind == "multi" else one == c for one in (labels, predicted))
            wrong = np.flatnonzero(actual != decided)
            surest = wrong[np.argsort(-np.abs(scores[wrong, c] - actual[wrong]), kind="stable")]
            surest = surest[~np.isin(surest, [n for _, shown_rows in groups for n in shown_rows])][:OF_GROUP]
            missed = int(actual[wrong].sum())
            title = f"{names[c]}: F1 {score.f1:.2f}; {missed:,} of {counted(score.rows, 'row')} missed, "
            groups.append((title + f"{counted(len(wrong) - missed, 'other')} taken for it", surest))
    tiles = [
        (title, row_tiles(prepared, rows.ids[chosen], [row_lines(rows, n, names, kind) for n in chosen], pixels))
        for title, chosen in groups
        if len(chosen) and pixels is not None
    ]
    title = {"single": "Worst classes", "multi": "Worst labels", "regression": "Largest errors"}[kind]
    return [first, *([SideBySide(title, tiles)] if tiles else [])]


def worst_section(rows: HonestRows, prepared: Prepared, pixels: Pixels | None) -> Section | None:
    """The rows of `wrong_rows` as pictures; None if there are none.

    rows: of `classes.honest_rows`.  pixels: (N, H, W, 3) uint8 of the training rows in index order; None leaves them out.
    """
    kind, names = prepared.competition.targets.kind, prepared.competition.classes
    worst = wrong_rows(rows, kind, TILES)
    if not len(worst):
        return None
    lines = [row_lines(rows, n, names, kind) for n in worst]
    tiles = row_tiles(prepared, rows.ids[worst], lines, pixels, MAX_SIZE)
    without = f" {NO_PICTURES}" if pixels is None and has_images(prepared.index) else ""
    note = f"{counted(len(tiles), 'row')} {WORST_NOTES[kind]}{without}"
    title = "Most confident errors" if kind == "single" else "Largest errors"
    return Section("errors", title, f"{SOURCE}; cache", [Sheet(tiles, note)])
