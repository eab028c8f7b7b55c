"""Charts of scores, calibration and counts, as inline SVG (see svg.py)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from competition.config.errors import counted
from competition.ensemble.metrics import score_range
from competition.report.mistakes import Bin
from competition.report.svg import COLOURS, NORMAL, PLACEHOLDERS, SMALL, Chart, axis_ends, chart, shortened
from competition.report.terminal import number, plus_minus

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Point:
    """One row of the score chart."""

    name: str
    value: float
    error: float | None  # standard error; without one, no bar is drawn
    honest: bool  # filled; otherwise hollow: scored on the rows it was chosen on
    note: str = ""
    test: bool = False  # a diamond: scored on test rows, not on the rows of the others


def score_chart(points: Sequence[Point], band: tuple[float, float] | None, axis_name: str) -> list[Markup]:
    """Scores with their standard errors, one row each: drawn for wide and for narrow pages; the page shows one of them.

    band: 95 % interval of the expected leaderboard score.
    """
    return [_score_chart(points, band, axis_name, wide) for wide in (True, False)]


def _score_chart(points: Sequence[Point], band: tuple[float, float] | None, axis_name: str, wide: bool) -> Markup:
    lowest, highest = score_range(axis_name)
    whiskers, values = [], []  # the ends of each standard error, inside the limits of the metric; each score as text
    for p in points:
        error = p.error or 0.0
        whiskers.append((max(p.value - error, min(lowest, p.value)), min(p.value + error, max(highest, p.value))))
        values.append(f"{number(p.value)}{f' {plus_minus(p.error, p.value)}' if p.error is not None else ''}")
    ends = [end for whisker in whiskers for end in whisker] + list(band or ())
    left, right, row_height = (190, 240, 26) if wide else (20, 20, 46)
    height = row_height * len(points)
    with chart(960 if wide else 372, height + 66, (left, right, 22, 44)) as drawing:
        axes = drawing.axes
        axes.set_xlim(axis_ends(ends, (lowest, highest)))
        axes.set_ylim(len(points) - 0.5, -0.5)
        drawing.ticks("x", 7 if wide else 4)
        axes.set_xlabel(axis_name)
        axes.set_yticks(range(len(points)), [shortened(p.name, 24) for p in points] if wide else [], size=NORMAL)
        axes.tick_params(axis="y", pad=10, labelcolor=PLACEHOLDERS["ink"])
        if band:
            axes.axvspan(*band, color=PLACEHOLDERS["band"], linewidth=0)
            text = "expected leaderboard, 95 % interval" if wide else "expected, 95 %"
            low, high = axes.get_xlim()
            middle, room = (
                (sum(band) / 2 - low) / (high - low),
                3.2 * len(text) / ((960 if wide else 372) - left - right),
            )
            side = "right" if middle + room > 1 else "left" if middle < room else "center"
            at = {"right": 1.0, "left": 0.0, "center": middle}[side]  # an interval at the end does not cut its name off
            place: Any = ((at, 1), (0, 6), "axes fraction", "offset points")
            axes.annotate(text, *place, ha=side, color=PLACEHOLDERS["soft"])
        for row, p in enumerate(points):
            _score_row(drawing, p, row + (0 if wide else 0.22), whiskers[row])
            _score_texts(axes, p, row, values[row], wide)
        listed = "; ".join(f"{p.name} {value}{f' ({p.note})' if p.note else ''}" for p, value in zip(points, values))
        return drawing.markup(f"{axis_name} with standard errors: {listed}", "wide" if wide else "narrow")


def _score_row(drawing: Chart, p: Point, y: float, ends: tuple[float, float]) -> None:
    axes = drawing.axes
    if p.error is not None:
        (whisker,) = axes.plot(ends, [y, y], color=PLACEHOLDERS["ink"])
        whisker.set(linewidth=2, alpha=0.75)
        drawing.mark(whisker, "whisker")
    fill = PLACEHOLDERS["gold" if p.honest else "card"]
    marker = "D" if p.test else "o"
    (dot,) = axes.plot(p.value, y, marker, color=fill, markeredgecolor=PLACEHOLDERS["gold"], markersize=10)
    dot.set(markeredgewidth=0 if p.honest else 2, zorder=3, clip_on=False)
    drawing.mark(dot, "dot" if p.honest else "hollow", p.name)


def _score_texts(axes: "Axes", p: Point, row: int, value: str, wide: bool) -> None:
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "in_layout": False}
    if wide:
        axes.text(1 + 14 / 530, row, value, size=NORMAL, **place)
        axes.text(1 + 148 / 530, row, p.note, color=PLACEHOLDERS["soft"], **place)
    else:
        name = f"{p.name}, {p.note}" if p.note else p.name
        axes.text(0, row - 0.22, name if len(name) <= 30 else shortened(p.name, 26), size=NORMAL, **place)
        axes.text(1, row - 0.22, value, size=NORMAL, ha="right", **place)


def legend(names: Iterable[str]) -> Markup:
    """The colours c0, c1, ... with their names; every second line is dashed."""
    key = Markup('<span class="key{}"><i class="k{}"></i>{}</span>')
    keys = [key.format(" dashed" if n % 2 else "", n % COLOURS, name) for n, name in enumerate(names)]
    return Markup('<div class="legend">{}</div>').format(Markup("").join(keys))


def reliability_chart(bins: Sequence[Bin]) -> Markup:
    """Accuracy against confidence with standard errors and the diagonal of perfect calibration; below, rows per bin."""
    with chart(304, 336, (46, 12, 22, 84)) as drawing:
        axes = drawing.axes
        axes.set(xlim=(0, 1), ylim=(0, 1), title="accuracy")
        drawing.ticks("y", 6)
        axes.set_xticks([])
        axes.plot([0, 1], [0, 1], color=PLACEHOLDERS["soft"], linestyle=(0, (4, 4)), linewidth=1)
        strip = drawing.figure.add_axes((46 / 304, 34 / 336, 246 / 304, 36 / 336), facecolor="none", sharex=None)
        strip.set(xlim=(0, 1), yticks=[], xlabel="confidence (bars: rows)", xticks=np.arange(6) / 5)
        for group in bins:
            tooltip = f"{counted(group.rows, 'row')}: confidence {group.confidence:.3f}, accuracy {group.accuracy:.3f} ± {group.error:.3f}"
            interval = np.clip([group.accuracy - group.error, group.accuracy + group.error], 0, 1)
            (whisker,) = axes.plot([group.confidence] * 2, interval, color=PLACEHOLDERS["ink"], linewidth=2, alpha=0.75)
            drawing.mark(whisker, "whisker")
            (dot,) = axes.plot(group.confidence, group.accuracy, "o", color=PLACEHOLDERS["gold"], markersize=8)
            dot.set(markeredgewidth=0, clip_on=False, zorder=3)
            drawing.mark(dot, "dot", tooltip)
            (bar,) = strip.bar(group.confidence, group.rows, 16 / 246, color=PLACEHOLDERS["c0"], alpha=0.75)
            bar.set_clip_on(False)
            drawing.mark(bar, "bar", tooltip)
        return drawing.markup("accuracy by confidence, with standard errors")


def truth_chart(truth: np.ndarray, predicted: np.ndarray, mean: float, width: float = 430) -> Markup:
    """Predictions of a regression against the truth, with the lines of equality and of the mean.  truth, predicted: (N,)."""
    with chart(width, width - 30, (62, 14, 22, 44)) as drawing:
        axes = drawing.axes
        ends = axis_ends([*truth, *predicted])
        axes.set(xlim=ends, ylim=ends, title="prediction", xlabel="truth")
        drawing.ticks("x", 5 if width > 400 else 3)
        drawing.ticks("y", 5)
        axes.plot(ends, ends, color=PLACEHOLDERS["soft"], linestyle=(0, (4, 4)), linewidth=1)
        axes.plot(ends, [mean, mean], color=PLACEHOLDERS["wrong"], linestyle=(0, (1, 3)), linewidth=1.5)
        (dots,) = axes.plot(truth, predicted, "o", color=PLACEHOLDERS["c0"], markersize=5, alpha=0.5)
        dots.set(markeredgewidth=0, clip_on=False)
        drawing.mark(dots, "dots")
        return drawing.markup(f"predictions against the truth of {len(truth):,} rows")


def bar_chart(heights: Sequence[int], tooltips: Sequence[str], name: str) -> list[Markup]:
    """Counts side by side, in the given order: drawn for wide and for narrow pages."""
    drawings = []
    for css_class, width in (("wide", 960), ("narrow", 372)):
        with chart(width, 150, (52, 8, 18, 14)) as drawing:
            axes = drawing.axes
            axes.set(title=name, xlim=(-0.5, len(heights) - 0.5), ylim=(0, max(*heights, 1)), xticks=[])
            drawing.ticks("y", 3)
            bars = axes.bar(range(len(heights)), heights, 0.9, color=PLACEHOLDERS["c0"], alpha=0.8)
            for bar, tooltip in zip(bars, tooltips, strict=True):
                drawing.mark(bar, "bar", tooltip)
            drawings.append(drawing.markup(name, css_class))
    return drawings


def public_score_chart(points: Sequence[tuple[str, float, float, float, float, float]], metric: str) -> Markup:
    """Honest against public scores with their error bars and the diagonal of equal scores.

    points: (name, honest score, its standard error, public score, low and high end of its 95 % interval).
    """
    with chart(372, 330, (56, 14, 22, 44)) as drawing:
        axes = drawing.axes
        x_ends = axis_ends([v for _, x, error, _, _, _ in points for v in (x - error, x + error)], score_range(metric))
        y_ends = axis_ends([v for _, _, _, y, low, high in points for v in (y, low, high)], score_range(metric))
        axes.set(xlim=x_ends, ylim=y_ends, title="public score", xlabel="honest score")
        drawing.ticks("x", 5)
        drawing.ticks("y", 5)
        equal = (min(x_ends[0], y_ends[0]), max(x_ends[1], y_ends[1]))
        axes.plot(equal, equal, color=PLACEHOLDERS["soft"], linestyle=(0, (4, 4)), linewidth=1)
        for name, x, error, y, low, high in points:
            axes.plot([x - error, x + error], [y, y], color=PLACEHOLDERS["soft"], linewidth=1.2)
            axes.plot([x, x], [low, high], color=PLACEHOLDERS["band"], linewidth=7, zorder=1, solid_capstyle="butt")
            inside = low <= y <= high
            (dot,) = axes.plot(x, y, "o" if inside else "X", color=PLACEHOLDERS["right" if inside else "wrong"])
            dot.set(markersize=8, zorder=3, markeredgewidth=0, clip_on=False)
            drawing.mark(dot, "dot", f"{name}: {x:.4f} here, {y:.4f} there ({low:.4f} to {high:.4f} expected)")
        places = axes.transData.transform([(x, y) for _, x, _, y, _, _ in points]) * 72 / drawing.figure.dpi
        for (name, x, _, y, _, _), offset in zip(points, label_offsets(places, [30.0] * len(points)), strict=True):
            if offset is not None:
                axes.annotate(name[:4], (x, y), offset, textcoords="offset points", size=SMALL - 1)
        listed = "; ".join(f"{name} {x:.4f}, {y:.4f}" for name, x, _, y, _, _ in points)
        return drawing.markup(f"honest against public scores: {listed}")


def label_offsets(
    places: np.ndarray, widths: Sequence[float], ends: tuple[float, float] = (-inf, inf)
) -> list[tuple[float, float] | None]:
    """Where the name of each point fits without touching another name or point, from the point; None where nowhere.

    places: (n, 2) pixels, up and to the right.  widths: of the names of the first points; the others have none.
    ends: of the chart, from left to right.
    """
    height, radius = 14.0, 5.0
    taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in places]
    offsets: list[tuple[float, float] | None] = []
    for (x, y), width in zip(places, widths):
        offsets.append(None)
        for dx, dy in ((6.0, 5.0), (6.0, -16.0), (-6.0 - width, 5.0), (-6.0 - width, -16.0)):
            box = (x + dx, y + dy, x + dx + width, y + dy + height)
            is_free = not any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in taken)
            if is_free and ends[0] <= box[0] and box[2] <= ends[1]:
                offsets[-1] = (dx, dy)
                taken.append(box)
                break
    return offsets
