"""Charts as SVG inside the page: no picture files, text that can be searched, colours that follow light and dark.

Colours and widths are classes of the page's style sheet; what comes from users is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from competition.report.mistakes import Bin
from competition.report.terminal import plus_minus

COLOURS = 8  # classes c0 to c7 of the style sheet


@dataclass(frozen=True)
class Axis:
    """Values from low to high lie on pixels from start to end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers, 1, 2 or 5 times a power of ten apart."""
        rough = (self.high - self.low) / about
        power = 10.0 ** np.floor(np.log10(rough))
        step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.999)
        first = np.ceil(self.low / step - 1e-9)
        count = int(np.floor(self.high / step + 1e-9) - first) + 1
        return [round(float((first + n) * step), 10) for n in range(count)]


@dataclass(frozen=True)
class Point:
    """One line of the picture of scores."""

    name: str
    value: float
    error: float | None  # half the length of its bar
    honest: bool  # filled; else hollow: on the rows it was chosen on
    note: str = ""


def _tag(name: str, text: object = "", **attributes: object) -> Markup:
    told = Markup("").join(
        Markup(' {}="{}"').format(key.strip("_").replace("_", "-"), _number(value)) for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), told, text)


def _number(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def _text(x: float, y: float, text: object, class_: str = "", anchor: str = "start") -> Markup:
    return _tag("text", text, x=float(x), y=float(y), class_=class_, text_anchor=anchor)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return _tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def _svg(width: float, height: float, parts: Iterable[Markup], label: str) -> Markup:
    inner = Markup("\n").join(parts)
    return Markup('<svg viewBox="0 0 {:.0f} {:.0f}" style="width:{:.0f}px" role="img" aria-label="{}">{}</svg>').format(
        width, height, width, label, inner
    )


def _titled(text: str) -> Markup:
    return _tag("title", text)


def score_chart(points: Sequence[Point], band: tuple[float, float] | None, axis_name: str) -> Markup:
    """Points with their standard errors, one under the other; band: where leaderboards are expected."""
    ends = [p.value + side * (p.error or 0) for p in points for side in (-1, 1)] + list(band or ())
    room = (max(ends) - min(ends)) * 0.06 or 0.01
    row, top, left, width = 26, 34, 190, 960
    bottom = top + row * len(points)
    x = Axis(min(ends) - room, max(ends) + room, left, width - 240)
    parts = []
    if band:
        low, high = x.at(band[0]), x.at(band[1])
        parts += [
            _tag("rect", x=low, y=float(top - 12), width=high - low, height=float(bottom - top + 12), class_="band"),
            _text((low + high) / 2, top - 18, "expected leaderboard, 95 % interval", "small", "middle"),
        ]
    for tick in x.ticks(6):
        parts += [_line(x.at(tick), top - 12, x.at(tick), bottom, "grid")]
        parts += [_text(x.at(tick), bottom + 16, f"{tick:g}", "small", "middle")]
    for n, p in enumerate(points):
        y = top + row * n + 8
        spread = f" {plus_minus(p.error)}" if p.error is not None else ""
        parts.append(_text(left - 14, y + 4, p.name, "", "end"))
        if p.error is not None:
            parts.append(_line(x.at(p.value - p.error), y, x.at(p.value + p.error), y, "whisker"))
        dot = _tag(
            "circle", _titled(p.name), cx=x.at(p.value), cy=float(y), r=5.0, class_="dot" if p.honest else "hollow"
        )
        parts += [dot, _text(width - 226, y + 4, f"{p.value:.4f}{spread}", "figure")]
        parts.append(_text(width - 92, y + 4, p.note, "small"))
    parts.append(_text((x.start + x.end) / 2, bottom + 34, axis_name, "small", "middle"))
    return _svg(width, bottom + 42, parts, f"{axis_name}: members and blend with standard errors")


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], name: str, least: float | None = None
) -> Markup:
    """One line for each of `lines` (x, y); a value that is no number is left out.  least: the frame begins there."""
    told = {key: [(x, y) for x, y in zip(*both, strict=True) if np.isfinite(y)] for key, both in lines.items()}
    told = {key: points for key, points in told.items() if points}
    values = [y for points in told.values() for _, y in points]
    width, height = 460.0, 230.0
    if not values:
        return Markup("")
    low, high = max(min(values), least if least is not None else -np.inf), max(values)
    room = (high - low) * 0.05 or 0.01
    last = max(x for points in told.values() for x, _ in points)
    x, y = Axis(1, max(last, 2), 52, width - 12), Axis(low - room, high + room, height - 34, 22)
    parts = [_text(8, 13, name, "small")]
    for tick in y.ticks(4):
        parts += [_line(x.start, y.at(tick), x.end, y.at(tick), "grid")]
        parts += [_text(x.start - 6, y.at(tick) + 4, f"{tick:g}", "small", "end")]
    parts += [
        _text(x.at(tick), height - 18, f"{tick:g}", "small", "middle") for tick in x.ticks(6) if tick == int(tick)
    ]
    parts.append(_text((x.start + x.end) / 2, height - 3, "epoch", "small", "middle"))
    drawn = []
    for n, (key, points) in enumerate(told.items()):
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in points)
        drawn.append(_tag("polyline", _titled(key), points=path, class_=f"curve c{n % COLOURS}"))
        last_x, last_y = points[-1]
        dot = {"cx": x.at(last_x), "cy": y.at(last_y), "r": 2.5, "class_": f"end c{n % COLOURS}"}
        drawn.append(_tag("circle", _titled(f"{key}: {last_y:.4f}"), **dot))
    wide, tall = x.end - x.start + 4, y.start - y.end
    frame = f"{x.start} {y.end} {wide} {tall}"  # what lies below the frame is cut off, not pressed against it
    parts.append(_tag("svg", Markup("").join(drawn), x=x.start, y=y.end, width=wide, height=tall, viewBox=frame))
    return _svg(width, height, parts, f"{name} by epoch")


def legend(names: Iterable[str]) -> Markup:
    """The colours of `curves`, in the same order."""
    keys = [
        Markup('<span class="key"><i class="k{}"></i>{}</span>').format(n % COLOURS, name)
        for n, name in enumerate(names)
    ]
    return Markup('<div class="legend">{}</div>').format(Markup("").join(keys))


def reliability_chart(bins: Sequence[Bin]) -> Markup:
    """Accuracy against confidence with standard errors, the diagonal that both should share, and where the rows are."""
    size, strip = 300.0, 46.0
    x, y = Axis(0, 1, 46, size - 8), Axis(0, 1, size - 14, 12)
    most = max(one.rows for one in bins)
    parts = [_line(x.at(0), y.at(0), x.at(1), y.at(1), "diagonal")]
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts += [_line(x.start, y.at(tick), x.end, y.at(tick), "grid")]
        parts += [_text(x.start - 6, y.at(tick) + 4, f"{tick:g}", "small", "end")]
        parts += [_text(x.at(tick), size + strip + 14, f"{tick:g}", "small", "middle")]
    for one in bins:
        low, high = max(one.accuracy - one.error, 0), min(one.accuracy + one.error, 1)
        told = f"{one.rows:,} rows: confidence {one.confidence:.3f}, accuracy {one.accuracy:.3f} ± {one.error:.3f}"
        parts.append(_line(x.at(one.confidence), y.at(low), x.at(one.confidence), y.at(high), "whisker"))
        parts.append(_tag("circle", _titled(told), cx=x.at(one.confidence), cy=y.at(one.accuracy), r=4.0, class_="dot"))
        tall = max(one.rows / most * (strip - 14), 1)
        parts.append(
            _tag(
                "rect",
                _titled(told),
                x=x.at(one.confidence) - 8,
                y=size + strip - 2 - tall,
                width=16.0,
                height=tall,
                class_="bar",
            )
        )
    parts.append(_text((x.start + x.end) / 2, size + strip + 30, "confidence (below: rows)", "small", "middle"))
    parts.append(_text(x.start + 6, 24, "accuracy", "small"))
    return _svg(size, size + strip + 36, parts, "reliability")


def confusion_chart(table: np.ndarray, names: Sequence[str]) -> Markup:
    """(C, C) rows of each class (down) that were given each class (across); the stronger, the larger the share of its row."""
    classes = len(table)
    cell = max(min(420 / classes, 34.0), 4.5)
    named = classes <= 24
    left, top = (104.0, 84.0) if named else (16.0, 16.0)
    side = cell * classes
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    parts = [_tag("rect", x=left, y=top, width=side, height=side, class_="frame")]
    for a, g in np.argwhere(table > 0):
        told = (
            f"{names[a]} taken for {names[g]}: {table[a, g]:,} of {table[a].sum():,}"
            if a != g
            else f"{names[a]}: {table[a, a]:,} of {table[a].sum():,} right"
        )
        strength = 0.08 + 0.92 * float(np.sqrt(shares[a, g])) if a != g else 0.12 + 0.5 * float(shares[a, g])
        parts.append(
            _tag(
                "rect",
                _titled(told),
                x=left + g * cell,
                y=top + a * cell,
                width=cell - 0.5,
                height=cell - 0.5,
                class_="wrong" if a != g else "right",
                fill_opacity=f"{strength:.2f}",
            )
        )
        if cell >= 20:
            parts.append(_text(left + (g + 0.5) * cell, top + (a + 0.5) * cell + 4, f"{table[a, g]}", "cell", "middle"))
    if named:
        for n, name in enumerate(names):
            short = name if len(name) <= 15 else name[:14] + "…"
            parts.append(_text(left - 6, top + (n + 0.5) * cell + 4, short, "small", "end"))
            x, y = left + (n + 0.5) * cell + 3, top - 6
            parts.append(_tag("text", short, class_="small", transform=f"translate({x:.1f} {y:.1f}) rotate(-52)"))
    parts.append(_text(left + side / 2, top + side + 16, "given class; down: its own class", "small", "middle"))
    return _svg(left + side + (60 if named else 16), top + side + 24, parts, "confusion")


def bar_chart(heights: Sequence[int], titles: Sequence[str], name: str) -> Markup:
    """Counts side by side, as they come."""
    width, height, left = 960.0, 150.0, 52.0
    y = Axis(0, max(*heights, 1), height - 18, 14)
    step = (width - left - 8) / len(heights)
    parts = [_text(8, 10, name, "small")]
    for tick in y.ticks(3):
        parts += [_line(left, y.at(tick), width - 8, y.at(tick), "grid")]
        parts += [_text(left - 6, y.at(tick) + 4, f"{tick:g}", "small", "end")]
    for n, (count, title) in enumerate(zip(heights, titles, strict=True)):
        parts.append(
            _tag(
                "rect",
                _titled(title),
                x=left + n * step,
                y=y.at(count),
                width=max(step - 1.5, 0.8),
                height=y.start - y.at(count),
                class_="bar",
            )
        )
    return _svg(width, height, parts, name)
