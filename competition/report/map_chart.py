"""The map of the rows as inline SVG (see svg.py): dots and crosses in the colours of their classes, with class names."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from competition.report.mistakes import confusion
from competition.report.svg import NORMAL, PLACEHOLDERS, Chart, PointMark, chart, shortened

WIDTH, HEIGHT = 660.0, 540.0  # pixels
ALL_COLOURED, COLOURED = 12, 8  # up to 12 classes have a colour each; of more, 8 have one
COLOUR_ORDER = (0, 1, 2, 3, 4, 5, 8, 10, 9, 11, 6, 7)  # the first eight differ most


@dataclass(frozen=True)
class MapPoints:
    """The drawn rows."""

    places: np.ndarray  # (n, 2) float
    ids: np.ndarray  # (n,) str
    labels: np.ndarray  # (n,) int
    predicted: np.ndarray  # (n,) int
    pictures: np.ndarray  # (n,) int: number of the row's picture; -1 = none


def coloured_classes(labels: np.ndarray, predicted: np.ndarray, classes: int) -> dict[int, int]:
    """Class -> number of its colour; of more than ALL_COLOURED classes, those with the most wrong rows, of them or taken for them.

    labels, predicted: (N,) int of all scored rows.
    """
    chosen = np.arange(classes)
    if classes > ALL_COLOURED:
        table = confusion(labels, predicted, classes)
        wrong = table.sum(0) + table.sum(1) - 2 * np.diag(table)
        most = np.argsort(-wrong, kind="stable")[:COLOURED]
        chosen = most[wrong[most] > 0]
    return {int(number): COLOUR_ORDER[n] for n, number in enumerate(chosen)}


def map_chart(points: MapPoints, names: Sequence[str], colours: dict[int, int]) -> Markup:
    """The points: right rows as dots, wrong ones as crosses above them; a class without a colour is grey.

    colours: of `coloured_classes`.
    """
    with chart(WIDTH, HEIGHT, (6, 6, 6, 6)) as drawing:
        axes = drawing.axes
        low, high = points.places.min(0), points.places.max(0)
        size = (
            np.array([WIDTH, HEIGHT]) * float(((high - low) / (WIDTH, HEIGHT)).max()) * 1.07
        )  # one scale for both axes
        (left, bottom), (right, top) = (low + high - size) / 2, (low + high + size) / 2
        axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
        axes.spines[:].set(visible=True, color=PLACEHOLDERS["rule"])
        wrong = points.labels != points.predicted
        is_grey = ~np.isin(points.labels, list(colours))
        for is_wrong in (False, True):
            _draw(drawing, points, names, (wrong == is_wrong) & is_grey, is_wrong, "soft")
            for number, colour in colours.items():
                _draw(drawing, points, names, (wrong == is_wrong) & (points.labels == number), is_wrong, f"c{colour}")
        _name_classes(drawing, points, names, list(colours))
        return drawing.markup(f"map of {len(points.ids):,} rows, {wrong.sum():,} of them wrong")


def _draw(
    drawing: Chart, points: MapPoints, names: Sequence[str], chosen: np.ndarray, is_wrong: bool, colour: str
) -> None:
    """Draw the chosen points.  chosen: (n,) bool.  colour: of PLACEHOLDERS."""
    marks = []
    for n in np.flatnonzero(chosen):
        taken_for = f" predicted as {names[points.predicted[n]]}" if is_wrong else ", predicted right"
        text = f"{names[points.labels[n]]}{taken_for} · {points.ids[n]}"
        marks.append(PointMark(text, int(points.pictures[n])))
    shape = {"marker": "X", "markersize": 9.5, "alpha": 0.95} if is_wrong else {"marker": "o", "markersize": 5.5}
    alpha = 0.35 if colour == "soft" and not is_wrong else 0.75
    # A border in the colour of the page keeps crosses apart from the dots below them.
    border = {"markeredgecolor": PLACEHOLDERS["card"], "markeredgewidth": 0.8 if is_wrong else 0.0}
    style = {"alpha": alpha, "color": PLACEHOLDERS[colour], **border, **shape}
    drawing.mark_points(points.places[chosen, 0], points.places[chosen, 1], marks, style)


def _name_classes(drawing: Chart, points: MapPoints, names: Sequence[str], classes: Sequence[int]) -> None:
    """Write each class's name above its point in the middle, the largest class first; one that would cover another is left out."""
    axes, taken = drawing.axes, list[tuple[float, float]]()
    for number in sorted(classes, key=lambda one: (-(points.labels == one).sum(), one)):
        own = points.places[points.labels == number]
        if not len(own):
            continue
        middle = own[((own - np.median(own, axis=0)) ** 2).sum(1).argmin()]
        x, y = axes.transData.transform(middle) * 72 / drawing.figure.dpi
        if not any(abs(x - a) < 110 and abs(y - b) < 22 for a, b in taken):
            taken.append((x, y))
            text = axes.annotate(shortened(names[number], 16), middle, (0, 7), textcoords="offset points", ha="center")
            text.set(size=NORMAL, weight="bold")
            drawing.mark(text, "name")


def map_legend(names: Sequence[str], colours: dict[int, int]) -> Markup:
    """The coloured classes, and the grey ones if there are any."""
    key = Markup('<span class="key dot"><i class="{}"></i>{}</span>')
    keys = [key.format(f"k{colour}", names[number]) for number, colour in colours.items()]
    if len(colours) < len(names):
        keys.append(key.format("grey", f"{'other' if colours else 'all'} classes"))
    return Markup('<div class="legend">{}</div>').format(Markup("").join(keys))
