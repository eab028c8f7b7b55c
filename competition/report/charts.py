"""Charts of scores, calibration and counts, as inline SVG (see svg.py)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from competition.config.errors import counted
from competition.ensemble.metrics import score_range
from competition.report.mistakes import Bin
from competition.report.svg import COLOURS, NORMAL, PLACEHOLDERS, SMALL, axis_ends, chart, shortened
from competition.report.terminal import number, plus_minus

MOST_POINTS = 1000  # of a regression, evenly over the values
MOST_BARS = 150  # with a tooltip each; more are narrower than a pointer can aim at


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
    lowest, highest = score_range(axis_name)
    whiskers, values = [], []  # the ends of each standard error, inside the limits of the metric; each score as text
    for p in points:
        error = p.error or 0.0
        whiskers.append((max(p.value - error, min(lowest, p.value)), min(p.value + error, max(highest, p.value))))
        values.append(f"{number(p.value)}{f' {plus_minus(p.error, p.value)}' if p.error is not None else ''}")
    ends = [end for whisker in whiskers for end in whisker] + list(band or ())
    listed = "; ".join(f"{p.name} {value}{f' ({p.note})' if p.note else ''}" for p, value in zip(points, values))
    drawings = []
    for wide in (True, False):
        width, left, right, row_height = (960, 190, 240, 26) if wide else (372, 20, 20, 58)
        with chart(width, row_height * len(points) + 66, (left, right, 22, 44)) as drawing:
            axes = drawing.axes
            axes.set_xlim(axis_ends(ends, (lowest, highest)))
            axes.set_ylim(len(points) - 0.5, -0.5)
            drawing.ticks(x=7 if wide else 4)
            axes.set_xlabel(axis_name)
            axes.set_yticks(range(len(points)), [shortened(p.name, 25) for p in points] if wide else [], size=NORMAL)
            axes.tick_params(axis="y", pad=10, labelcolor=PLACEHOLDERS["ink"])
            if band:
                axes.axvspan(*band, color=PLACEHOLDERS["band"], linewidth=0)
                text = "expected leaderboard, 95 % interval" if wide else "expected, 95 %"
                low, high = axes.get_xlim()
                middle, room = (sum(band) / 2 - low) / (high - low), 3.2 * len(text) / (width - left - right)
                side = "right" if middle + room > 1 else "left" if middle < room else "center"
                # An interval at the end does not cut its name off.
                at = {"right": 1.0, "left": 0.0, "center": middle}[side]
                above: Any = ((at, 1), (0, 6), "axes fraction", "offset points")
                axes.annotate(text, *above, ha=side, color=PLACEHOLDERS["soft"])
            for row, p in enumerate(points):
                y = row + (0 if wide else 0.26)
                if p.error is not None:
                    drawing.line(whiskers[row], [y, y], "ink", "whisker", linewidth=2, alpha=0.75)
                edge: dict[str, Any] = {
                    "markeredgecolor": PLACEHOLDERS["gold"],
                    "markeredgewidth": 0 if p.honest else 2,
                }
                colour, css_class = ("gold", "dot") if p.honest else ("card", "hollow")
                drawing.dots(
                    p.value, y, colour, css_class, tooltip=p.name, marker="D" if p.test else "o", markersize=10, **edge
                )
                place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "in_layout": False}
                if wide:
                    axes.text(1 + 14 / 530, row, values[row], size=NORMAL, **place)
                    axes.text(1 + 148 / 530, row, p.note, color=PLACEHOLDERS["soft"], **place)
                else:
                    axes.text(0, row - 0.3, shortened(p.name, 28), size=NORMAL, **place)
                    axes.text(1, row - 0.3, values[row], size=NORMAL, ha="right", **place)
                    axes.text(0, row - 0.03, p.note, color=PLACEHOLDERS["soft"], **place)
            drawings.append(drawing.markup(f"{axis_name} with standard errors: {listed}", "wide" if wide else "narrow"))
    return drawings


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
        drawing.ticks(y=6)
        axes.set_xticks([])
        drawing.line([0, 1], [0, 1], "soft", linestyle=(0, (4, 4)), linewidth=1)
        strip = drawing.figure.add_axes((46 / 304, 34 / 336, 246 / 304, 36 / 336), facecolor="none", sharex=None)
        strip.set(xlim=(0, 1), yticks=[], xlabel="confidence (bars: rows)", xticks=np.arange(6) / 5)
        for group in bins:
            tooltip = f"{counted(group.rows, 'row')}: confidence {group.confidence:.3f}, accuracy {group.accuracy:.3f} ± {group.error:.3f}"
            interval = np.clip([group.accuracy - group.error, group.accuracy + group.error], 0, 1)
            drawing.line([group.confidence] * 2, interval, "ink", "whisker", linewidth=2, alpha=0.75)
            drawing.dots(group.confidence, group.accuracy, "gold", "dot", tooltip)
            (bar,) = strip.bar(group.confidence, group.rows, 16 / 246, color=PLACEHOLDERS["c0"], alpha=0.75)
            bar.set_clip_on(False)
            drawing.mark(bar, "bar", tooltip)
        return drawing.markup("accuracy by confidence, with standard errors")


def truth_chart(truth: np.ndarray, predicted: np.ndarray, mean: float, width: float = 430) -> Markup:
    """Predictions of a regression against the truth, with the lines of equality and of the mean.

    truth, predicted: (N,) float; of more than MOST_POINTS rows so many are drawn, evenly over the true values.
    """
    shown = np.linspace(0, len(truth) - 1, min(MOST_POINTS, len(truth))).astype(int)
    chosen = np.argsort(truth, kind="stable")[shown]
    truth, predicted = truth[chosen], predicted[chosen]
    with chart(width, width - 30, (62, 14, 22, 44)) as drawing:
        axes = drawing.axes
        ends = axis_ends([*truth, *predicted])
        axes.set(xlim=ends, ylim=ends, title="prediction", xlabel="truth")
        drawing.ticks(x=5 if width > 400 else 3, y=5)
        drawing.line(ends, ends, "soft", linestyle=(0, (4, 4)), linewidth=1)
        drawing.line(ends, [mean, mean], "wrong", linestyle=(0, (1, 3)), linewidth=1.5)
        drawing.dots(truth, predicted, "c0", "dots", markersize=5, alpha=0.5)
        return drawing.markup(f"predictions against the truth of {len(truth):,} rows")


def bar_chart(heights: Sequence[int], tooltips: Sequence[str], name: str) -> list[Markup]:
    """Counts side by side, in the given order: drawn for wide and for narrow pages; more than MOST_BARS as one outline."""
    drawings = []
    for css_class, width in (("wide", 960), ("narrow", 372)):
        with chart(width, 150, (52, 8, 18, 14)) as drawing:
            axes = drawing.axes
            axes.set(title=name, xlim=(-0.5, len(heights) - 0.5), ylim=(0, max(*heights, 1)), xticks=[])
            drawing.ticks(y=3)
            if len(heights) > MOST_BARS:
                edges = np.arange(len(heights) + 1) - 0.5
                axes.stairs(heights, edges, fill=True, color=PLACEHOLDERS["c0"], alpha=0.8)
            else:
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
        drawing.ticks(x=5, y=5)
        equal = (min(x_ends[0], y_ends[0]), max(x_ends[1], y_ends[1]))
        drawing.line(equal, equal, "soft", linestyle=(0, (4, 4)), linewidth=1)
        for name, x, error, y, low, high in points:
            drawing.line([x - error, x + error], [y, y], "soft", linewidth=1.2)
            drawing.line([x, x], [low, high], "band", linewidth=7, zorder=1, solid_capstyle="butt")
            colour, marker = ("right", "o") if low <= y <= high else ("wrong", "X")
            tooltip = f"{name}: {x:.4f} here, {y:.4f} there ({low:.4f} to {high:.4f} expected)"
            drawing.dots(x, y, colour, "dot", tooltip, marker=marker)
        names, places = [point[0][:4] for point in points], np.array([(point[1], point[3]) for point in points])
        drawing.name_points(places, names, [30.0] * len(points), SMALL - 1)
        listed = "; ".join(f"{name} {x:.4f}, {y:.4f}" for name, x, _, y, _, _ in points)
        return drawing.markup(f"honest against public scores: {listed}")
