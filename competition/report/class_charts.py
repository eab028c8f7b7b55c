"""The confusion matrix as inline SVG (see svg.py)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from competition.config.errors import counted
from competition.report.svg import PLACEHOLDERS, Chart, PointMark, chart, shortened

ORDERED = 24  # up to this many classes keep their order; more are ordered by similarity
SMALL_CELL, LARGE_CELL, SIDE = 11.0, 90.0, 420.0  # pixels: of a cell among many and among few, of the whole matrix


def similar_order(confusion: np.ndarray) -> np.ndarray:
    """(C,) order of the classes in which classes that are confused stand together: spectral seriation (Atkins 1998).

    confusion: (C, C) int. A weak link between all classes connects the groups that are never confused.
    """
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    similarity = shares + shares.T + 1e-6
    np.fill_diagonal(similarity, 0)
    _, vectors = np.linalg.eigh(np.diag(similarity.sum(1)) - similarity)
    return np.argsort(vectors[:, 1], kind="stable")


def confusion_chart(confusion: np.ndarray, names: Sequence[str], width: float = SIDE) -> Markup:
    """Rows of each class (down) by predicted class (across).

    confusion: (C, C) int.  width: of few classes, pixels without their names. Blue cells are right, orange ones wrong; the
    opacity grows with the share of the class. Empty cells are not drawn. More than ORDERED classes are ordered by similarity.
    """
    order = similar_order(confusion) if len(names) > ORDERED else np.arange(len(names))
    confusion, names = confusion[np.ix_(order, order)], [names[int(n)] for n in order]
    classes = len(confusion)
    cell = min(max(width / classes, 17.5), LARGE_CELL) if classes <= ORDERED else SMALL_CELL
    font = min(cell * 0.9, 11.5)
    short = [shortened(name, 20) for name in names]
    longest = max(len(name) for name in short) * font * 0.6
    margins = (longest + 14, 20 + longest * 0.45, longest * 0.9 + 12, 24.0)
    side = cell * classes
    with chart(margins[0] + side + margins[1], margins[2] + side + margins[3], margins) as drawing:
        axes = drawing.axes
        axes.set(xlim=(0, classes), ylim=(classes, 0), xticks=[], yticks=[])
        axes.set_xlabel("predicted class across, true class down")
        axes.spines[:].set(visible=True, color=PLACEHOLDERS["rule"])
        draw_cells(drawing, confusion, names, cell)
        # matplotlib takes ten times as long for the labels of ticks.
        soft: dict[str, Any] = {"size": font, "color": PLACEHOLDERS["soft"]}
        for n, name in enumerate(short):
            axes.text(-3.5 / cell, n + 0.5, name, ha="right", va="center", **soft)
            axes.text(n + 0.5, -3.5 / cell, name, rotation=58, rotation_mode="anchor", **soft)
        return drawing.markup(f"confusion matrix of {classes} classes")


def draw_cells(drawing: Chart, confusion: np.ndarray, names: Sequence[str], cell: float) -> None:
    """The cells that have rows, those of one colour and opacity as one group of squares, and the numbers in them.

    cell: its side in pixels. In small cells only the numbers of wrong rows above 1 are written.
    """
    totals = confusion.sum(1)
    shares = confusion / np.maximum(totals[:, None], 1)
    is_right = np.eye(len(confusion), dtype=bool)
    opacity = np.where(is_right, 0.14 + 0.4 * shares, 0.35 + 0.65 * np.minimum(2 * shares, 1.0) ** 0.5).round(1)
    for style, is_of_style in (("right", is_right), ("wrong", ~is_right)):
        is_drawn = is_of_style & (confusion > 0)
        for alpha in np.unique(opacity[is_drawn]).tolist():
            marks, places = [], np.argwhere(is_drawn & (opacity == alpha))
            for true, predicted in places.tolist():
                taken_for = "" if style == "right" else f" predicted as {names[predicted]}"
                rows = f"{confusion[true, predicted]:,} of {counted(int(totals[true]), 'row')}"
                marks.append(PointMark(f"{names[true]}{taken_for}: {rows} {style}"))
            square: dict[str, Any] = {"marker": "s", "markersize": cell - 0.5, "alpha": alpha}
            drawing.points(places[:, 1] + 0.5, places[:, 0] + 0.5, marks, style, style, **square)
    is_small = cell < 17
    for true, predicted in np.argwhere(~is_right & (confusion > 1) if is_small else confusion > 0).tolist():
        count = str(confusion[true, predicted])
        size = min(15.0, cell * 0.8, cell * 1.5 / len(count))
        drawing.axes.text(predicted + 0.5, true + 0.52, count, ha="center", va="center", size=size, zorder=4)
