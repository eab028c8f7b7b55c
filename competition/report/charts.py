"""Charts of scores, calibration and counts, as inline SVG (see svg.py)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from competition.config.errors import counted
from competition.ensemble.metrics import score_range
from competition.report.mistakes import Bin
from competition.report.svg import COLOURS, NORMAL, PLACEHOLDERS, axis_ends, chart, shortened
from competition.report.terminal import number, plus_minus

MOST_POINTS = 1000  # of a regression, evenly over the values


@dataclass(frozen=True)
class Point:
    """One row of the score chart."""

    name: str
    value: float
    error: float | None  # standard error; without one, no bar is drawn
    honest: bool  # filled; otherwise hollow: scored on the rows it was chosen on
    note: str = ""
    test: bool = False  # a diamond: scored on test rows, not on the rows of the others


def score_chart(points: Sequence[Point], band: tuple[float, float] | None, metric: str) -> Markup:
    """Scores with their standard errors, one row each, with their names above.  band: 95 % interval of the expected leaderboard score."""
    lowest, highest = score_range(metric)
    whiskers = []  # the ends of each standard error, inside the limits of the metric
    for point in points:
        low, high = point.value - (point.error or 0.0), point.value + (point.error or 0.0)
        whiskers.append((max(low, min(lowest, point.value)), min(high, max(highest, point.value))))
    listed = []
    with chart(372, 58 * len(points) + 66, (20, 20, 22, 44)) as drawing:
        axes = drawing.axes
        axes.set_xlim(axis_ends([*np.ravel(whiskers), *(band or ())], (lowest, highest)))
        axes.set(ylim=(len(points) - 0.5, -0.5), xlabel=metric, yticks=[])
        drawing.ticks(x=4)
        if band:
            axes.axvspan(*band, color=PLACEHOLDERS["band"], linewidth=0)
            axes.set_title("shaded: expected leaderboard, 95 %")
        beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "in_layout": False}
        for row, (point, whisker) in enumerate(zip(points, whiskers, strict=True)):
            value = number(point.value)
            if point.error is not None:
                value = f"{value} {plus_minus(point.error, point.value)}"
                drawing.line(whisker, [row + 0.26] * 2, "ink", "whisker", linewidth=2, alpha=0.75)
            colour, css_class = ("gold", "dot") if point.honest else ("card", "hollow")
            edge: dict[str, Any] = {
                "markeredgecolor": PLACEHOLDERS["gold"],
                "markeredgewidth": 0 if point.honest else 2,
            }
            marker = "D" if point.test else "o"
            drawing.dots(point.value, row + 0.26, colour, css_class, point.name, marker=marker, markersize=10, **edge)
            axes.text(0, row - 0.3, shortened(point.name, 28), size=NORMAL, **beside)
            axes.text(1, row - 0.3, value, size=NORMAL, ha="right", **beside)
            axes.text(0, row - 0.03, point.note, color=PLACEHOLDERS["soft"], **beside)
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


def reliability_chart(bins: Sequence[Bin]) -> Markup:
    """Accuracy against confidence with standard errors and the diagonal of perfect calibration.  bins: of mistakes.reliability."""
    with chart(304, 300, (46, 12, 22, 44)) as drawing:
        drawing.axes.set(xlim=(0, 1), ylim=(0, 1), title="accuracy", xlabel="confidence")
        drawing.ticks(x=6, y=6)
        drawing.line([0, 1], [0, 1], "soft", linestyle=(0, (4, 4)), linewidth=1)
        for group in bins:
            tooltip = f"{counted(group.rows, 'row')}: confidence {group.confidence:.3f}, accuracy {group.accuracy:.3f} ± {group.error:.3f}"
            interval = np.clip([group.accuracy - group.error, group.accuracy + group.error], 0, 1)
            drawing.line([group.confidence] * 2, interval, "ink", "whisker", linewidth=2, alpha=0.75)
            drawing.dots(group.confidence, group.accuracy, "gold", "dot", tooltip)
        return drawing.markup("accuracy by confidence, with standard errors")


def truth_chart(truth: np.ndarray, predicted: np.ndarray, mean: float) -> Markup:
    """Predictions of a regression against the truth, with the lines of equality and of the mean.

    truth, predicted: (N,) float; of more than MOST_POINTS rows so many are drawn, evenly over the true values.
    """
    shown = np.linspace(0, len(truth) - 1, min(MOST_POINTS, len(truth))).astype(int)
    chosen = np.argsort(truth, kind="stable")[shown]
    truth, predicted = truth[chosen], predicted[chosen]
    with chart(360, 330, (62, 14, 22, 44)) as drawing:
        axes = drawing.axes
        ends = axis_ends([*truth, *predicted])
        axes.set(xlim=ends, ylim=ends, title="prediction", xlabel="truth")
        drawing.ticks(x=3, y=5)
        drawing.line(ends, ends, "soft", linestyle=(0, (4, 4)), linewidth=1)
        drawing.line(ends, [mean, mean], "wrong", linestyle=(0, (1, 3)), linewidth=1.5)
        drawing.dots(truth, predicted, "c0", "dots", markersize=5, alpha=0.5)
        return drawing.markup(f"predictions against the truth of {len(truth):,} rows")


def bar_chart(heights: Sequence[int], name: str) -> Markup:
    """Counts beside each other, in the given order."""
    with chart(640, 150, (52, 8, 18, 14)) as drawing:
        drawing.axes.set(title=name, xlim=(0, len(heights)), ylim=(0, max(*heights, 1)), xticks=[])
        drawing.ticks(y=3)
        drawing.axes.stairs(heights, fill=True, color=PLACEHOLDERS["c0"], alpha=0.8)
        return drawing.markup(
            f"{name}: {counted(len(heights), 'class', 'classes')}, {max(heights):,} to {min(heights):,}"
        )
