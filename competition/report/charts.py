"""Charts of the report, drawn by matplotlib as SVG inside the page.

Why matplotlib and not plotly: the page needs no script (its content-security policy forbids any) and prints well; its
charts take less than 1 MB even with a full confusion matrix of 104 classes. plotly would inline a script of several MB
and need a weaker policy. An interactive page (`optuna.visualization`) can still use plotly in a file of its own.

matplotlib writes fixed colours. The charts are drawn in placeholder colours which `_Chart.markup` replaces by the
variables of the style sheet, so they follow light and dark mode. Text stays text: it is escaped, never parsed as math.
matplotlib is imported when the first chart is drawn.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from competition.report.mistakes import Bin
from competition.report.terminal import plus_minus

COLOURS = 8  # --c0 to --c7 of the style sheet
VARIABLES = ("ink", "soft", "rule", "card", "gold", "band", "wrong", "right", *(f"c{n}" for n in range(COLOURS)))
PLACEHOLDERS = {name: f"#{n:06x}" for n, name in enumerate(VARIABLES)}  # ink is black, matplotlib's default
SMALL, NORMAL = 11.5, 13.0  # font sizes in pixels
RC = {
    "svg.fonttype": "none",  # text, not paths
    "svg.hashsalt": "goldfold",  # equal charts get equal bytes
    "text.parse_math": False,  # a class named "$x$" is no formula
    "path.simplify": False,
    "font.size": SMALL,
    "axes.titlesize": SMALL,
    "axes.titlecolor": PLACEHOLDERS["soft"],
    "axes.titlelocation": "left",
    "axes.titlepad": 5.0,
    "axes.labelcolor": PLACEHOLDERS["soft"],
    "axes.labelpad": 3.0,
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.bottom": False,
    "axes.formatter.useoffset": False,
    "grid.color": PLACEHOLDERS["rule"],
    "grid.linewidth": 1.0,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.labelcolor": PLACEHOLDERS["soft"],
    "ytick.labelcolor": PLACEHOLDERS["soft"],
}


@dataclass(frozen=True)
class Point:
    """One row of the score chart."""

    name: str
    value: float
    error: float | None  # standard error; None draws no bar
    honest: bool  # filled; otherwise hollow: scored on the rows it was chosen on
    note: str = ""


class _Chart:
    """One axes in a figure; 1 unit of the figure is 1 CSS pixel. margins: left, right, top, bottom in pixels."""

    def __init__(self, width: float, height: float, margins: tuple[float, float, float, float]) -> None:
        from matplotlib.figure import Figure

        left, right, top, bottom = margins
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / 72, height / 72))
        box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
        self.axes: Any = self.figure.add_axes(box, facecolor="none")
        self._marks: dict[str, tuple[str, str]] = {}

    def mark(self, artist: Any, css_class: str, tooltip: str = "") -> None:
        """Give the SVG group of `artist` a CSS class and a tooltip."""
        gid = f"mark{len(self._marks)}"
        artist.set_gid(gid)
        self._marks[gid] = (css_class, tooltip)

    def ticks(self, axis: str, count: int) -> None:
        """Grid lines and labels at about `count` round values of the "x" or "y" axis."""
        from matplotlib.ticker import MaxNLocator

        getattr(self.axes, f"{axis}axis").set_major_locator(MaxNLocator(count, steps=[1, 2, 5, 10]))
        self.axes.grid(axis=axis)

    def markup(self, label: str) -> Markup:
        """The SVG element, without XML namespaces (HTML needs none). label: for screen readers."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        root = ElementTree.fromstring(out.getvalue())
        for child in [child for child in root if not child.tag.endswith("}g")]:
            root.remove(child)  # metadata and a style sheet that would apply to the whole page
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
            attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
            if "style" in attributes:
                attributes["style"] = _themed(attributes["style"])
            if element.tag == "g" and "id" in attributes:  # ids of groups repeat from chart to chart
                css_class, tooltip = self._marks.get(attributes.pop("id"), ("", ""))
                if css_class:
                    attributes["class"] = css_class
                if tooltip:
                    title = ElementTree.Element("title")
                    title.text = tooltip
                    element.insert(0, title)
            element.attrib = attributes
        size = f"0 0 {self.width:.0f} {self.height:.0f}"
        root.attrib = {"viewBox": size, "style": f"width:{self.width:.0f}px", "role": "img", "aria-label": label}
        return Markup(ElementTree.tostring(root, encoding="unicode"))  # ElementTree has escaped every text


def _themed(style: str) -> str:
    """A style attribute of matplotlib with the page's colours and font family."""
    style = re.sub(r"#0000([0-9a-f]{2})", lambda match: f"var(--{VARIABLES[int(match[1], 16)]})", style)
    return re.sub(r"font-family: [^;]*;? ?", "", style)


@contextmanager
def _chart(width: float, height: float, margins: tuple[float, float, float, float]) -> Iterator[_Chart]:
    import matplotlib as mpl

    with mpl.rc_context(RC):  # type: ignore[arg-type]
        yield _Chart(width, height, margins)


def score_chart(points: Sequence[Point], band: tuple[float, float] | None, axis_name: str) -> Markup:
    """Scores with their standard errors, one row each.  band: 95 % interval of the expected leaderboard score."""
    limits = [p.value + sign * (p.error or 0) for p in points for sign in (-1, 1)] + list(band or ())
    margin = (max(limits) - min(limits)) * 0.06 or 0.01
    height = 26 * len(points)
    with _chart(960, height + 66, (190, 240, 22, 44)) as chart:
        axes = chart.axes
        axes.set_xlim(min(limits) - margin, max(limits) + margin)
        axes.set_ylim(len(points) - 0.5, -0.5)
        chart.ticks("x", 7)
        axes.set_xlabel(axis_name)
        axes.set_yticks(range(len(points)), [p.name for p in points], size=NORMAL, color=PLACEHOLDERS["ink"])
        axes.tick_params(axis="y", pad=10)
        if band:
            axes.axvspan(*band, color=PLACEHOLDERS["band"], linewidth=0)
            text = "expected leaderboard, 95 % interval"
            axes.annotate(
                text,
                (sum(band) / 2, 1),
                (0, 6),
                ("data", "axes fraction"),
                "offset points",
                ha="center",
                color=PLACEHOLDERS["soft"],
            )
        for row, p in enumerate(points):
            if p.error is not None:
                (whisker,) = axes.plot([p.value - p.error, p.value + p.error], [row, row], color=PLACEHOLDERS["ink"])
                whisker.set(linewidth=2, alpha=0.75)
                chart.mark(whisker, "whisker")
            fill = PLACEHOLDERS["gold" if p.honest else "card"]
            (dot,) = axes.plot(p.value, row, "o", color=fill, markeredgecolor=PLACEHOLDERS["gold"], markersize=10)
            dot.set(markeredgewidth=0 if p.honest else 2, zorder=3)
            chart.mark(dot, "dot" if p.honest else "hollow", p.name)
            error = f" {plus_minus(p.error)}" if p.error is not None else ""
            place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "in_layout": False}
            axes.text(1 + 14 / 530, row, f"{p.value:.4f}{error}", size=NORMAL, **place)
            axes.text(1 + 148 / 530, row, p.note, color=PLACEHOLDERS["soft"], **place)
        return chart.markup(f"{axis_name}: members and blend with standard errors")


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], name: str, lower_limit: float | None = None
) -> Markup:
    """One line for each of `lines` (epochs, values), without values that are not finite.

    lower_limit: values below it are outside the axes. Empty if there is nothing to draw.
    """
    finite = {
        key: np.array([pair for pair in zip(*both, strict=True) if np.isfinite(pair[1])]) for key, both in lines.items()
    }
    finite = {key: points for key, points in finite.items() if len(points)}
    if not finite:
        return Markup("")
    values = np.concatenate([points[:, 1] for points in finite.values()])
    low, high = max(values.min(), -np.inf if lower_limit is None else lower_limit), values.max()
    margin = (high - low) * 0.05 or 0.01
    with _chart(460, 230, (52, 12, 22, 34)) as chart:
        axes = chart.axes
        axes.set_title(name)
        axes.set_xlabel("epoch")
        axes.set_xlim(1, max(*(points[-1, 0] for points in finite.values()), 2))
        axes.set_ylim(low - margin, high + margin)
        chart.ticks("y", 4)
        axes.xaxis.get_major_locator().set_params(nbins=6, integer=True)
        for n, (key, points) in enumerate(finite.items()):
            colour = PLACEHOLDERS[f"c{n % COLOURS}"]
            (line,) = axes.plot(*points.T, color=colour, linewidth=1.7)
            chart.mark(line, "curve", key)
            (end,) = axes.plot(*points[-1], "o", color=colour, markersize=5, clip_on=points[-1, 1] < low - margin)
            chart.mark(end, "end", f"{key}: {points[-1, 1]:.4f}")
        return chart.markup(f"{name} by epoch")


def legend(names: Iterable[str]) -> Markup:
    """The colours of `curves`, in the same order."""
    key = Markup('<span class="key"><i class="k{}"></i>{}</span>')
    return Markup('<div class="legend">{}</div>').format(
        Markup("").join(key.format(n % COLOURS, name) for n, name in enumerate(names))
    )


def reliability_chart(bins: Sequence[Bin]) -> Markup:
    """Accuracy against confidence with standard errors and the diagonal of perfect calibration; below, rows per bin."""
    with _chart(300, 336, (46, 8, 22, 84)) as chart:
        axes = chart.axes
        axes.set(xlim=(0, 1), ylim=(0, 1), title="accuracy")
        chart.ticks("y", 6)
        axes.set_xticks([])
        axes.plot([0, 1], [0, 1], color=PLACEHOLDERS["soft"], linestyle=(0, (4, 4)), linewidth=1)
        strip = chart.figure.add_axes((46 / 300, 34 / 336, 246 / 300, 36 / 336), facecolor="none", sharex=None)
        strip.set(xlim=(0, 1), yticks=[], xlabel="confidence (bars: rows)", xticks=np.arange(6) / 5)
        for one in bins:
            tooltip = (
                f"{one.rows:,} rows: confidence {one.confidence:.3f}, accuracy {one.accuracy:.3f} ± {one.error:.3f}"
            )
            interval = np.clip([one.accuracy - one.error, one.accuracy + one.error], 0, 1)
            (whisker,) = axes.plot([one.confidence] * 2, interval, color=PLACEHOLDERS["ink"], linewidth=2, alpha=0.75)
            chart.mark(whisker, "whisker")
            (dot,) = axes.plot(one.confidence, one.accuracy, "o", color=PLACEHOLDERS["gold"], markersize=8)
            dot.set(markeredgewidth=0, clip_on=False, zorder=3)
            chart.mark(dot, "dot", tooltip)
            (bar,) = strip.bar(one.confidence, one.rows, 16 / 246, color=PLACEHOLDERS["c1"], alpha=0.75)
            bar.set_clip_on(False)
            chart.mark(bar, "bar", tooltip)
        return chart.markup("reliability")


def confusion_chart(confusion: np.ndarray, names: Sequence[str]) -> Markup:
    """Rows of each class (down) by predicted class (across); the opacity grows with the share of the class.

    confusion: (C, C) int. Empty cells are not drawn. Names are shown for at most 24 classes, counts where they fit.
    """
    from matplotlib.patches import Rectangle

    classes = len(confusion)
    cell = max(min(420 / classes, 34.0), 4.5)
    named = classes <= 24
    left, right, top, bottom = (104.0, 60.0, 84.0, 24.0) if named else (16.0, 16.0, 16.0, 24.0)
    side = cell * classes
    totals = confusion.sum(1)
    shares = confusion / np.maximum(totals[:, None], 1)
    with _chart(left + side + right, top + side + bottom, (left, right, top, bottom)) as chart:
        axes = chart.axes
        axes.set(xlim=(0, classes), ylim=(classes, 0), xticks=[], yticks=[], xlabel="predicted class; down: true class")
        axes.spines[:].set(visible=True, color=PLACEHOLDERS["rule"])
        width = 1 - 0.5 / cell  # leaves a gap of half a pixel
        for true, predicted in np.argwhere(confusion > 0):
            right_class, share = true == predicted, float(shares[true, predicted])
            rows = f"{confusion[true, predicted]:,} of {totals[true]:,}"
            tooltip = (
                f"{names[true]}: {rows} right"
                if right_class
                else f"{names[true]} predicted as {names[predicted]}: {rows}"
            )
            alpha = 0.12 + 0.5 * share if right_class else 0.08 + 0.92 * np.sqrt(share)
            style = "right" if right_class else "wrong"
            patch = Rectangle((predicted, true), width, width, color=PLACEHOLDERS[style], alpha=alpha, linewidth=0)
            chart.mark(axes.add_patch(patch), style, tooltip)
            if cell >= 20:
                count = str(confusion[true, predicted])
                axes.text(predicted + 0.5, true + 0.5, count, ha="center", va="center", gid="count", size=12)
        if named:
            short = [name if len(name) <= 15 else name[:14] + "…" for name in names]
            centres = np.arange(classes) + 0.5
            axes.xaxis.tick_top()
            axes.set_yticks(centres, short)
            axes.set_xticks(centres, short, rotation=52, ha="left", va="bottom", rotation_mode="anchor")
        return chart.markup("confusion")


def bar_chart(heights: Sequence[int], tooltips: Sequence[str], name: str) -> Markup:
    """Counts side by side, in the given order."""
    with _chart(960, 150, (52, 8, 18, 14)) as chart:
        axes = chart.axes
        axes.set(title=name, xlim=(-0.5, len(heights) - 0.5), ylim=(0, max(*heights, 1)), xticks=[])
        chart.ticks("y", 3)
        bars = axes.bar(range(len(heights)), heights, 0.9, color=PLACEHOLDERS["c1"], alpha=0.75)
        for bar, tooltip in zip(bars, tooltips, strict=True):
            chart.mark(bar, "bar", tooltip)
        return chart.markup(name)
