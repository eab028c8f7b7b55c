"""Charts of scores, of predictions against the truth and of confusions, as inline SVG (see svg.py)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from competition.config.errors import counted
from competition.ensemble.metrics import score_range
from competition.report.svg import COLOURS, DASHED, DOTTED, NORMAL, Chart, axis_ends, shortened
from competition.report.terminal import number, plus_minus

ROW_HEIGHT = 58.0  # pixels, of the score chart
MOST_POINTS = 1000  # of a regression, evenly over the values
FEW_CLASSES = 24  # of which each cell of a confusion matrix has room for its number
SMALL_CELL, LARGE_CELL, SIDE = 11.0, 90.0, 420.0  # pixels: of a cell among many and among few, of the whole matrix


@dataclass(frozen=True)
class Point:
    """One row of the score chart."""

    name: str
    value: float
    error: float | None  # standard error; without one, no bar is drawn
    honest: bool  # filled; otherwise hollow: scored on the rows it was chosen on
    note: str = ""
    test: bool = False  # blue: scored on test rows, not on the rows of the others


def score_chart(points: Sequence[Point], band: tuple[float, float] | None, metric: str) -> Markup:
    """Scores with their standard errors, one row each, with their names above.  band: 95 % interval of the score expected on test rows."""
    lowest, highest = score_range(metric)
    whiskers = []  # the ends of each standard error, inside the limits of the metric
    for point in points:
        low, high = point.value - (point.error or 0.0), point.value + (point.error or 0.0)
        whiskers.append((max(low, min(lowest, point.value)), min(high, max(highest, point.value))))
    height, listed = ROW_HEIGHT * len(points), []
    ends = axis_ends([*np.ravel(whiskers), *(band or ())], (lowest, highest))
    drawing = Chart((372, height + 66), (20, 20, 22, 44), ends, (height, 0))
    if band:
        (left, top), (right, bottom) = drawing.pixels(band, (0, height))
        drawing.add("rect", x=left, y=top, width=right - left, height=bottom - top, fill="band")
    drawing.axes(x=4, title="shaded: expected on test rows, 95 %" if band else "", across=metric)
    for row, (point, whisker) in enumerate(zip(points, whiskers, strict=True)):
        value, y = number(point.value), ROW_HEIGHT * row + 44
        if point.error is not None:
            value = f"{value} {plus_minus(point.error, point.value)}"
            drawing.line(whisker, y, "ink", "whisker", stroke_width=2)
        colour = "right" if point.test else "gold" if point.honest else "card"
        edge = {} if point.honest else {"stroke": "gold", "stroke_width": 2}
        drawing.dots(point.value, y, colour, "dot" if point.honest else "hollow", [point.name], r=5.0, **edge)
        top = drawing.top + ROW_HEIGHT * row
        drawing.write(drawing.left, top + 16, shortened(point.name, 28), font_size=NORMAL)
        drawing.write(drawing.right, top + 16, value, font_size=NORMAL, text_anchor="end")
        drawing.write(drawing.left, top + 32, point.note, "soft")
        listed.append(f"{point.name} {value}{f' ({point.note})' if point.note else ''}")
    return drawing.markup(f"{metric} with standard errors: {'; '.join(listed)}")


def legend(names: Iterable[str], colours: Iterable[str] | None = None, css_class: str = "") -> Markup:
    """The colours with their names.  colours: classes of the style sheet; None = k0, k1, ..., and every second one is dashed."""
    key = Markup('<span class="key {}"><i class="{}"></i>{}</span>')
    if colours is None:
        keys = [key.format("dashed" if n % 2 else "", f"k{n % COLOURS}", name) for n, name in enumerate(names)]
    else:
        keys = [key.format(css_class, colour, name) for name, colour in zip(names, colours, strict=True)]
    return Markup('<div class="legend">{}</div>').format(Markup("").join(keys))


def truth_chart(truth: np.ndarray, predicted: np.ndarray, mean: float) -> Markup:
    """Predictions of a regression against the truth, with the lines of equality and of the mean.

    truth, predicted: (N,) float; of more than MOST_POINTS rows so many are drawn, evenly over the true values.
    """
    shown = np.linspace(0, len(truth) - 1, min(MOST_POINTS, len(truth))).astype(int)
    chosen = np.argsort(truth, kind="stable")[shown]
    truth, predicted = truth[chosen], predicted[chosen]
    ends = axis_ends([*truth, *predicted])
    drawing = Chart((360, 330), (62, 14, 22, 44), ends, ends)
    drawing.axes(x=3, y=5, title="prediction", across="truth")
    drawing.line(ends, ends, "soft", stroke_dasharray=DASHED)
    drawing.line(ends, mean, "wrong", stroke_width=1.5, stroke_dasharray=DOTTED)
    drawing.dots(truth, predicted, "c0", "dot", r=2.5, opacity=0.5)
    return drawing.markup(f"predictions against the truth of {len(truth):,} rows")


def confusion_chart(confusion: np.ndarray, names: Sequence[str], width: float = SIDE) -> Markup:
    """Rows of each class (down) by predicted class (across).

    confusion: (C, C) int.  width: of few classes, pixels without their names. Blue cells are right, orange ones wrong; the
    opacity grows with the share of the class. Empty cells are not drawn. In small cells only the numbers of wrong rows above 1 are written.
    """
    classes, totals = len(confusion), confusion.sum(1)
    is_small = classes > FEW_CLASSES
    cell = SMALL_CELL if is_small else min(max(width / classes, 17.5), LARGE_CELL)
    font = min(cell * 0.9, 11.5)
    short = [shortened(name, 20) for name in names]
    longest = max(len(name) for name in short) * font * 0.6
    left, right, top, bottom = margins = (longest + 14, 20 + longest * 0.45, longest * 0.9 + 12, 24.0)
    size = (left + cell * classes + right, top + cell * classes + bottom)
    drawing = Chart(size, margins, (0, classes), (classes, 0))
    drawing.axes(across="predicted class across, true class down")
    for true, predicted in np.argwhere(confusion > 0).tolist():
        count, share = int(confusion[true, predicted]), confusion[true, predicted] / totals[true]
        style, opacity, taken_for = "right", 0.14 + 0.4 * share, ""
        if true != predicted:
            style, opacity = "wrong", 0.35 + 0.65 * min(2 * share, 1.0) ** 0.5
            taken_for = f" predicted as {names[predicted]}"
        tooltip = f"{names[true]}{taken_for}: {count:,} of {counted(int(totals[true]), 'row')} {style}"
        x, y = left + cell * predicted, top + cell * true
        square = {"x": x + 0.2, "y": y + 0.2, "width": cell - 0.4, "height": cell - 0.4}
        drawing.add("rect", style, tooltip, fill=style, opacity=float(opacity), **square)
        if not is_small or (style == "wrong" and count > 1):
            height = min(15.0, cell * 0.8, cell * 1.5 / len(str(count)))
            middle = {"text_anchor": "middle", "font_size": height}
            drawing.write(x + cell / 2, y + cell / 2 + 0.35 * height, str(count), "ink", **middle)
    for n, name in enumerate(short):
        place = cell * (n + 0.5)
        drawing.write(left - 3.5, top + place + font * 0.35, name, "soft", font_size=font, text_anchor="end")
        turned = f"rotate(-58 {left + place:.1f} {top - 3.5:.1f})"
        drawing.write(left + place, top - 3.5, name, "soft", font_size=font, transform=turned)
    return drawing.markup(f"confusion matrix of {classes} classes")
