"""The confusion matrix as inline SVG (see svg.py): clustered, labelled, readable with more than a hundred classes."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from competition.report.svg import PLACEHOLDERS, Chart, chart, shortened

ORDERED = 24  # up to this many classes keep their order; more are ordered by similarity
SMALL_CELL, LARGE_CELL, SIDE = 11.0, 90.0, 420.0  # pixels: of a cell among many and among few, of the whole matrix


def clustered_order(confusion: np.ndarray) -> np.ndarray:
    """(C,) order of the classes in which classes that are confused stand together.  confusion: (C, C) int.

    Average linkage on the shares of confused rows, leaves in optimal order; classes without confusions keep their order.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    similarity = shares + shares.T
    np.fill_diagonal(similarity, 0)
    if len(confusion) < 3 or not similarity.any():
        return np.arange(len(confusion))
    distance = 1 - similarity / similarity.max()
    np.fill_diagonal(distance, 0)
    return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))


def confusion_chart(confusion: np.ndarray, names: Sequence[str], width: float = SIDE) -> Markup:
    """Rows of each class (down) by predicted class (across), with the number of rows in every cell.

    confusion: (C, C) int.  width: of few classes, pixels without their names. Blue cells are right, orange ones wrong; the
    opacity grows with the share of the class. Empty cells are not drawn. More than ORDERED classes are ordered by similarity.
    """
    order = clustered_order(confusion) if len(names) > ORDERED else np.arange(len(names))
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
        axes.set(xlim=(0, classes), ylim=(classes, 0), xlabel="predicted class across, true class down")
        axes.spines[:].set(visible=True, color=PLACEHOLDERS["rule"])
        _draw_cells(drawing, confusion, names, cell)
        centres = np.arange(classes) + 0.5
        axes.xaxis.tick_top()
        axes.set_yticks(centres, short, size=font)
        axes.set_xticks(centres, short, size=font, rotation=58, ha="left", va="bottom", rotation_mode="anchor")
        return drawing.markup(f"confusion matrix of {classes} classes")


def _draw_cells(drawing: Chart, confusion: np.ndarray, names: Sequence[str], cell: float) -> None:
    from matplotlib.patches import Rectangle

    axes = drawing.axes
    totals = confusion.sum(1)
    shares = confusion / np.maximum(totals[:, None], 1)
    width = 1 - 0.5 / cell  # leaves a gap of half a pixel
    for true, predicted in np.argwhere(confusion > 0):
        right, share = true == predicted, float(shares[true, predicted])
        rows = f"{confusion[true, predicted]:,} of {totals[true]:,}"
        tooltip = (
            f"{names[true]}: {rows} right" if right else f"{names[true]} predicted as {names[predicted]}: {rows} wrong"
        )
        style = "right" if right else "wrong"
        alpha = 0.14 + 0.4 * share if right else 0.35 + 0.65 * min(2 * share, 1.0) ** 0.5
        patch = Rectangle((predicted, true), width, width, color=PLACEHOLDERS[style], alpha=alpha, linewidth=0)
        drawing.mark(axes.add_patch(patch), style, tooltip)
        if not right or cell >= 17:
            count = str(confusion[true, predicted])
            size = min(15.0, cell * 0.8, cell * 1.5 / len(count))
            axes.text(predicted + 0.5, true + 0.52, count, ha="center", va="center", size=size)
