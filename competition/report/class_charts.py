"""Charts of the classes as inline SVG (see svg.py): the confusion matrix, and F1 against the number of training rows."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from competition.report.mistakes import ClassScore
from competition.report.svg import PLACEHOLDERS, SMALL, PointMark, chart, shortened

ORDERED = 24  # up to this many classes keep their order; more are ordered by similarity
SMALL_CELL, LARGE_CELL, SIDE = 11.0, 90.0, 420.0  # pixels: of a cell among many and among few, of the whole matrix
NAMED = 5  # of the classes with the lowest F1


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
    from matplotlib.patches import Rectangle

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
        totals = confusion.sum(1)
        shares = confusion / np.maximum(totals[:, None], 1)
        box = 1 - 0.5 / cell  # leaves a gap of half a pixel
        for true, predicted in np.argwhere(confusion > 0):
            right, share, count = true == predicted, float(shares[true, predicted]), f"{confusion[true, predicted]:,}"
            taken_for = "" if right else f" predicted as {names[predicted]}"
            style = "right" if right else "wrong"
            tooltip = f"{names[true]}{taken_for}: {count} of {totals[true]:,} {style}"
            alpha = 0.14 + 0.4 * share if right else 0.35 + 0.65 * min(2 * share, 1.0) ** 0.5
            patch = Rectangle((predicted, true), box, box, color=PLACEHOLDERS[style], alpha=alpha, linewidth=0)
            drawing.mark(axes.add_patch(patch), style, tooltip)
            if not right or cell >= 17:
                count = str(confusion[true, predicted])
                size = min(15.0, cell * 0.8, cell * 1.5 / len(count))
                axes.text(predicted + 0.5, true + 0.52, count, ha="center", va="center", size=size)
        centres = np.arange(classes) + 0.5
        axes.xaxis.tick_top()
        axes.set_yticks(centres, short, size=font)
        axes.set_xticks(centres, short, size=font, rotation=58, ha="left", va="bottom", rotation_mode="anchor")
        return drawing.markup(f"confusion matrix of {classes} classes")


def class_size_chart(scores: Sequence[ClassScore], train_rows: np.ndarray, names: Sequence[str]) -> Markup:
    """F1 of every class against its training rows, on a logarithmic axis; the worst classes are named.

    scores: of `class_scores`, the worst first.  train_rows: (C,) int; a class without rows stands at half a row.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    x = np.maximum(train_rows[[score.number for score in scores]], 0.5)
    y = np.array([score.f1 for score in scores])
    worst = sum(score.f1 < 1 for score in scores[:NAMED])
    marks = [PointMark(f"{names[s.number]}: F1 {s.f1:.3f}, {train_rows[s.number]:,} training rows") for s in scores]
    with chart(460, 330, (46, 14, 22, 44)) as drawing:
        axes = drawing.axes
        axes.set_xscale("log")
        axes.set(xlim=(x.min() / 1.15, x.max() * 1.15), ylim=(y.min() - 0.1, 1.03))
        axes.set(title="F1 on scored rows", xlabel="training rows of the class (logarithmic)")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rows, _: f"{rows:,.0f}" if rows >= 1 else f"{rows:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x")
        drawing.ticks(y=5)
        drawing.points(x[worst:], y[worst:], marks[worst:], "c0", markersize=7, alpha=0.7, zorder=2)
        drawing.points(x[:worst], y[:worst], marks[:worst], "wrong", markersize=7, alpha=0.7, zorder=2)
        texts = [shortened(names[score.number], 18) for score in scores[:worst]]
        drawing.name_points(np.column_stack([x, y]), texts, [7.0 * len(text) for text in texts], SMALL, named=1)
        listed = "; ".join(mark.tooltip for mark in marks[:worst])
        return drawing.markup(f"F1 of {len(names)} classes by training rows; the lowest: {listed}")
