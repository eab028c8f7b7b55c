"""Charts as inline SVG: one pair of axes with lines, dots and texts, in the colours of the style sheet.

Colours are variables of page.css, so charts follow light and dark mode. Styles are attributes of the elements, because the page's
content-security policy allows no inline style.

Why neither plotly nor matplotlib: plotly inlines a script of 4.8 MB that calls `new Function`, so the page could not forbid scripts
made from text; matplotlib takes longer to import than everything else of the report, and writes fixed colours and styles.
"""

from collections.abc import Sequence
from math import inf
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np
from markupsafe import Markup

COLOURS = 12  # --c0 to --c11 of the style sheet
NORMAL = 13.0  # font size of names in pixels; all other texts have that of page.css
DASHED, DOTTED = "4 3", "1 3"  # stroke_dasharray of a line
Ends = tuple[float, float]


class Chart:
    """One pair of axes; 1 unit is 1 CSS pixel.

    size: width and height.  margins: left, right, top, bottom.  x, y: the values at the left and right, the bottom and top ends of the
    axes.  A colour is the name of a variable of page.css.
    """

    def __init__(self, size: Ends, margins: tuple[float, float, float, float], x: Ends, y: Ends) -> None:
        left, right, top, bottom = margins
        self.left, self.right, self.top, self.bottom = left, size[0] - right, top, size[1] - bottom
        self.x_ends, self.y_ends = x, y
        self.root = Element("svg", viewBox=f"0 0 {size[0]:.0f} {size[1]:.0f}", width=f"{size[0]:.0f}", role="img")

    def pixels(self, x: Any, y: Any) -> np.ndarray:
        """(n, 2) places of points in pixels.  x, y: (n,) values, or one number for all points."""
        (first_x, last_x), (first_y, last_y) = self.x_ends, self.y_ends
        across = (np.asarray(x, float) - first_x) / (last_x - first_x)
        up = (np.asarray(y, float) - first_y) / (last_y - first_y)
        columns = (self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top))
        return np.stack(np.broadcast_arrays(*map(np.atleast_1d, columns)), axis=1)

    def add(self, tag: str, css_class: str = "", tooltip: str = "", **attributes: Any) -> Element:
        """Append an SVG element.  attributes: of it, as stroke_width for stroke-width; fill and stroke are names of colours."""
        element = SubElement(self.root, tag, {"class": css_class} if css_class else {})
        for name, value in attributes.items():
            text = f"{round(value, 2):g}" if isinstance(value, float) else str(value)
            is_colour = name in ("fill", "stroke") and text != "none"
            element.set(name.replace("_", "-"), f"var(--{text})" if is_colour else text)
        if tooltip:
            SubElement(element, "title").text = tooltip
        return element

    def write(self, x: float, y: float, text: str, colour: str = "ink", **attributes: Any) -> None:
        """Write a text with its baseline at (x, y) in pixels."""
        if text:
            self.add("text", x=float(x), y=float(y), fill=colour, **attributes).text = text

    def line(self, x: Any, y: Any, colour: str, css_class: str = "", tooltip: str = "", **style: Any) -> None:
        """Draw a line through points.  style: attributes of SVG."""
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in self.pixels(x, y))
        self.add("polyline", css_class, tooltip, points=points, fill="none", stroke=colour, **style)

    def dots(
        self, x: Any, y: Any, colour: str, css_class: str, tooltips: Sequence[str] = (), **style: Any
    ) -> list[Element]:
        """Draw points and return their elements.  tooltips: one for each; () = none."""
        attributes = {"r": 4.0, "fill": colour, **style}
        places = self.pixels(x, y).tolist()
        texts = tooltips or [""] * len(places)
        return [
            self.add("circle", css_class, text, cx=a, cy=b, **attributes)
            for (a, b), text in zip(places, texts, strict=True)
        ]

    def axes(self, x: int = 0, y: int = 0, title: str = "", across: str = "") -> None:
        """Draw grid lines with labels at about so many round values of each axis.  title: of the y axis, above.  across: of the x axis."""
        for value in round_values(self.x_ends, x):
            ((place, _),) = self.pixels(value, self.y_ends[0])
            self.add("path", d=f"M{place:.1f} {self.top}V{self.bottom}", stroke="rule")
            self.write(place, self.bottom + 15, f"{value:,.6g}", "soft", text_anchor="middle")
        for value in round_values(self.y_ends, y):
            ((_, place),) = self.pixels(self.x_ends[0], value)
            self.add("path", d=f"M{self.left} {place:.1f}H{self.right}", stroke="rule")
            self.write(self.left - 6, place + 4, f"{value:,.6g}", "soft", text_anchor="end")
        self.write(self.left, self.top - 8, title, "soft")
        self.write((self.left + self.right) / 2, self.bottom + (30 if x else 16), across, "soft", text_anchor="middle")

    def markup(self, label: str) -> Markup:
        """The SVG element.  label: for screen readers."""
        self.root.set("aria-label", label)
        return Markup(ElementTree.tostring(self.root, encoding="unicode"))  # ElementTree has escaped every text


def round_values(ends: Ends, count: int) -> np.ndarray:
    """About `count` multiples of 1, 2 or 5 times a power of ten between the ends of an axis; none for 0."""
    if not count:
        return np.empty(0)
    length = ends[1] - ends[0]
    power = 10.0 ** np.floor(np.log10(length / count))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power * (count + 1) >= length)
    values = step * np.arange(np.ceil(ends[0] / step - 1e-9), np.floor(ends[1] / step + 1e-9) + 1)
    return values + 0.0  # -0.0 becomes 0.0, which is written without a sign


def axis_ends(values: Sequence[float], limits: Ends = (-inf, inf)) -> Ends:
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
