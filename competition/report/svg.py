"""Inline SVG for the report, drawn by matplotlib.

Why matplotlib and not plotly: plotly 7.1 inlines a script of 4.8 MB that calls `new Function`, so the page could not forbid
scripts made from text; the charts below take less than 1 MB even with a full confusion matrix of 104 classes, and print
well. Hence the figures of `optuna.visualization` do not fit into the page; those of `optuna.visualization.matplotlib` ignore
its colours and print labels over each other, so `tuning.py` draws what they show.

matplotlib writes fixed colours. The charts are drawn in placeholder colours which `Chart.markup` replaces by the
variables of the style sheet, so they follow light and dark mode. Styles become attributes of the elements, because the
page's content-security policy allows no inline style. Text stays text: it is escaped, never parsed as math.
matplotlib is imported when the first chart is drawn.
"""

import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.artist import Artist

COLOURS = 12  # --c0 to --c11 of the style sheet
VARIABLES = ("ink", "soft", "rule", "card", "gold", "band", "wrong", "right", *(f"c{n}" for n in range(COLOURS)))
PLACEHOLDERS = {name: f"#{n:06x}" for n, name in enumerate(VARIABLES)}  # ink is black, matplotlib's default
IDS = {"id": "^", "href": "^#", "clip-path": r"url\(#"}  # attribute -> what stands before an id in it
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
    "axes.titley": 1.0,  # no search for a place above the labels of ticks, of which none is at the top
    "axes.labelcolor": PLACEHOLDERS["soft"],
    "axes.labelpad": 3.0,
    "axes.axisbelow": True,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    "axes.formatter.useoffset": False,
    "grid.color": PLACEHOLDERS["rule"],
    "grid.linewidth": 1.0,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.labelcolor": PLACEHOLDERS["soft"],
    "ytick.labelcolor": PLACEHOLDERS["soft"],
}


class PointMark(NamedTuple):
    """One of many points of a chart."""

    tooltip: str
    picture: int = -1  # its number among the pictures of a page.PointMap; -1: it has none


class Chart:
    """One axes in a figure; 1 unit of the figure is 1 CSS pixel. margins: left, right, top, bottom in pixels."""

    def __init__(self, width: float, height: float, margins: tuple[float, float, float, float]) -> None:
        from matplotlib.figure import Figure

        left, right, top, bottom = margins
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / 72, height / 72))
        box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
        self.axes = self.figure.add_axes(box, facecolor="none")
        self._marks: dict[str, tuple[str, str]] = {}
        self._points: dict[str, Sequence[PointMark]] = {}

    def mark(self, artist: "Artist", css_class: str, tooltip: str = "") -> None:
        """Give the SVG group of `artist` a CSS class and a tooltip."""
        gid = f"mark{len(self._marks)}"
        artist.set_gid(gid)
        self._marks[gid] = (css_class, tooltip)

    def line(self, x: Any, y: Any, colour: str, css_class: str = "", tooltip: str = "", **style: Any) -> None:
        """Draw a line, with a class and a tooltip if there is one.  colour: of PLACEHOLDERS.  style: of matplotlib's Line2D."""
        (artist,) = self.axes.plot(x, y, color=PLACEHOLDERS[colour], **style)
        if css_class:
            self.mark(artist, css_class, tooltip)

    def dots(self, x: Any, y: Any, colour: str, css_class: str, tooltip: str = "", **style: Any) -> None:
        """Draw points without a border, also where the axes end, with one tooltip.  Arguments as of `line`."""
        style = {"marker": "o", "markersize": 8, "markeredgewidth": 0, "clip_on": False, "zorder": 3} | style
        self.line(x, y, colour, css_class, tooltip, linestyle="none", **style)

    def points(
        self, x: Any, y: Any, points: Sequence[PointMark], colour: str, css_class: str = "points", **style: Any
    ) -> None:
        """Draw points of one style with a tooltip each.  x, y: (n,) data coordinates.  The other arguments as of `line`."""
        if len(points):
            self._points[f"mark{len(self._marks)}"] = points
            self.dots(x, y, colour, css_class, **style)

    def ticks(self, **counts: int) -> None:
        """Grid lines and labels at about so many round values of the axes x and y."""
        from matplotlib.ticker import MaxNLocator

        for axis, count in counts.items():
            side = getattr(self.axes, f"{axis}axis")
            side.set_major_locator(MaxNLocator(count, steps=[1, 2, 5, 10]))
            side.grid()

    def log_axis(self, low: float, high: float) -> None:
        """A logarithmic x axis with a grid and few labels at round values."""
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        factors = ((30, (1.0, 2.0, 5.0)), (1000, (1.0, 3.0)), (inf, (1.0,)))
        self.axes.set(xscale="log", xlim=(low, high))
        self.axes.xaxis.set_major_locator(LogLocator(subs=next(each for ratio, each in factors if high < ratio * low)))
        self.axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}"))
        self.axes.xaxis.set_minor_locator(NullLocator())
        self.axes.grid(axis="x")

    def markup(self, label: str) -> Markup:
        """The SVG element, without XML namespaces (HTML needs none).  label: for screen readers."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        root = ElementTree.fromstring(out.getvalue())
        for child in list(root):
            if not child.tag.endswith("}g") and not any("clipPath" in part.tag for part in child):
                root.remove(child)  # metadata and a style sheet that would apply to the whole page
        # Ids must not refer to another chart, which may not be shown.
        prefix = f"c{zlib.crc32(f'{label} {out.getvalue()}'.encode()):08x}-"
        for element in root.iter():
            if points := self._points.get(element.get("id", "")):  # the group of a line
                markers = [marker for marker in element.iter() if marker.tag.endswith("}use")]
                for marker, point in zip(markers, points, strict=True):
                    element.attrib["style"] = marker.attrib.pop("style")  # all markers repeat it
                    marker.attrib |= {key: f"{float(marker.attrib[key]):.1f}" for key in ("x", "y")}
                    if point.picture >= 0:
                        marker.attrib["data-picture"] = str(point.picture)
                    ElementTree.SubElement(marker, "title").text = point.tooltip
            element.tag = element.tag.rpartition("}")[2]
            attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
            if "style" in attributes:
                attributes |= _style_attributes(attributes.pop("style"))
            if element.tag == "g" and "id" in attributes:  # ids of groups repeat from chart to chart
                mark_class, tooltip = self._marks.get(attributes.pop("id"), ("", ""))
                if mark_class:
                    attributes["class"] = mark_class
                if tooltip:
                    title = ElementTree.Element("title")
                    title.text = tooltip
                    element.insert(0, title)
            for key in IDS.keys() & attributes.keys():
                attributes[key] = re.sub(f"({IDS[key]})", rf"\g<1>{prefix}", attributes[key])
            element.attrib = attributes
        size = f"0 0 {self.width:.0f} {self.height:.0f}"
        root.attrib = {"viewBox": size, "width": f"{self.width:.0f}", "role": "img", "aria-label": label}
        return Markup(ElementTree.tostring(root, encoding="unicode"))  # ElementTree has escaped every text


def _style_attributes(style: str) -> dict[str, str]:
    """A style attribute of matplotlib as presentation attributes, with the page's colours and font family."""
    attributes = {}
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        name, _, value = declaration.partition(": ")
        if name == "font":  # e.g. 700 11.5px 'DejaVu Sans', sans-serif
            attributes["font-size"] = next(word for word in value.split() if word.endswith("px"))
            if re.match(r"(bold|[6-9]00)\b", value):
                attributes["font-weight"] = "600"
        elif name != "font-family":
            attributes[name] = re.sub(
                r"#0000([0-9a-f]{2})", lambda match: f"var(--{VARIABLES[int(match[1], 16)]})", value
            )
    return attributes


def axis_ends(values: Sequence[float], limits: tuple[float, float] = (-inf, inf)) -> tuple[float, float]:
    """The ends of an axis for these values, with a margin that never reaches beyond the limits of what they measure.

    Without negative values it does not reach below 0 either: neither losses nor times nor rates do.
    """
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 0.01
    lowest = max(limits[0], 0.0) if low >= 0 else limits[0]
    return max(low - margin, min(lowest, low)), min(high + margin, max(limits[1], high))


def shortened(text: str, longest: int) -> str:
    """The text, or its start with … if it has more than `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


@contextmanager
def chart(width: float, height: float, margins: tuple[float, float, float, float]) -> Iterator[Chart]:
    import matplotlib as mpl

    with mpl.rc_context(RC):  # type: ignore[arg-type]
        yield Chart(width, height, margins)
