"""The report's map of the scored rows in two dimensions: rows with similar features, or similar probabilities, are near."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from competition.ensemble.predictions import positions
from competition.images.decoded_cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.charts import legend
from competition.report.classes import HonestRows
from competition.report.mistakes import most_confident_errors
from competition.report.page import PointMap, Section
from competition.report.pictures import row_tiles
from competition.report.svg import NORMAL, PLACEHOLDERS, Chart, PointMark, chart, shortened
from competition.report.tsne import map_places
from competition.workspace.features_and_soft_labels import feature_table
from competition.workspace.runs import blended_runs
from competition.workspace.workspace import Workspace

MOST_POINTS = 600  # t-SNE of them takes a quarter of a second of one core
FEWEST_POINTS = 12
MOST_PICTURES = 150
LOWEST_PROBABILITY = 1e-4  # smaller ones differ by noise, which their logarithm would enlarge
WIDTH, HEIGHT = 660.0, 540.0  # pixels
COLOURED = 12  # classes, at most


def stored_features(workspace: Workspace, weights: Mapping[str, float]) -> tuple[str, np.ndarray] | None:
    """(name, features) of the frozen-feature member with the largest weight whose features are stored; None if the blend has none.

    The features are (rows of the part train, F) float16 in index order.  weights: member of the blend -> weight.
    """
    by_weight = sorted(blended_runs(workspace).items(), key=lambda item: -weights.get(item[0], 0.0))
    for name, runs in by_weight:
        if runs[0].member.head is not None:
            table = feature_table(workspace, runs[0].member, "train", "identity")
            if table.is_current:
                return name, table.load()
    return None


def map_section(
    rows: HonestRows, prepared: Prepared, pixels: Pixels | None, features: tuple[str, np.ndarray] | None
) -> Section | None:
    """The map with its legend and pictures; None if there are too few rows, or if they do not differ in two dimensions.

    rows: of `honest_rows`, of a single-label competition.  pixels: of the training rows in index order.
    features: of `stored_features`; None = the rows are compared by their probabilities.
    """
    # The wrong rows up to half of the points, or more if there are too few right ones.
    wrong, right = (np.flatnonzero(one) for one in (rows.labels != rows.predicted, rows.labels == rows.predicted))
    drawn_wrong = _evenly(wrong, rows.labels, max(MOST_POINTS // 2, MOST_POINTS - len(right)))
    drawn_right = _evenly(right, rows.labels, MOST_POINTS - len(drawn_wrong))
    drawn = np.sort(np.concatenate([drawn_wrong, drawn_right]))
    train_rows = positions(prepared.part("train")["id"].to_numpy(str), rows.ids[drawn])
    if features is not None:
        vectors = features[1][train_rows]
    else:  # logarithms with a mean of 0 in every row, so that only ratios of probabilities count
        logs = np.log(np.maximum(rows.scores[drawn], LOWEST_PROBABILITY))
        vectors = logs - logs.mean(1, keepdims=True)
    places = map_places(vectors.astype(np.float32)) if len(drawn) >= FEWEST_POINTS else None
    if places is None:
        return None
    names = prepared.competition.classes
    points = HonestRows(*(column[drawn] for column in rows))
    pictured, numbers = np.empty(0, int), np.full(len(drawn), -1)
    if pixels is not None:  # of wrong rows, the most confident first, then of right rows of all classes
        wrong = most_confident_errors(points.labels, points.predicted, points.scores, MOST_PICTURES)
        right = np.flatnonzero(points.labels == points.predicted)
        pictured = np.concatenate([wrong, _evenly(right, points.labels, MOST_PICTURES - len(wrong))])
    numbers[pictured] = np.arange(len(pictured))
    # The classes with the most wrong rows, of them or taken for them.
    is_wrong = rows.labels != rows.predicted
    mistaken = np.concatenate([rows.labels[is_wrong], rows.predicted[is_wrong]])
    coloured = np.argsort(-np.bincount(mistaken, minlength=len(names)), kind="stable")[:COLOURED]
    colours = {int(number): n for n, number in enumerate(np.sort(coloured))}
    drawing = map_chart(points, places, numbers, names, colours)
    lines = []
    for n in pictured:
        label, predicted = names[points.labels[n]], names[points.predicted[n]]
        lines.append([label, *([] if label == predicted else [f"✕ predicted as {predicted}"]), str(points.ids[n])])
    tiles = row_tiles(prepared, points.ids[pictured], lines, pixels)
    if features is not None:
        near = f"images with similar features of the frozen network of {features[0]}"
        sources = "features/*/features.npy, "
    else:
        near, sources = "rows with similar probabilities of the blend, fitted without their fold", ""
    wrong_drawn, wrong_count = int((points.labels != points.predicted).sum()), int(is_wrong.sum())
    right_drawn = f"{len(drawn) - wrong_drawn:,} of {len(rows.ids) - wrong_count:,} right rows, evenly over the classes"
    some = f"; {wrong_drawn:,} of {wrong_count:,} wrong and {right_drawn}" if len(drawn) < len(rows.ids) else ""
    of_colours = " The classes with the most wrong rows have a colour." if len(colours) < len(names) else ""
    note = (
        f"Near each other: {near}; t-SNE keeps neighbours, so neither the distance between groups nor their size or direction means "
        f"anything. Dots: right; crosses: wrong{some}. A cross has the colour of its own class: among dots of another class it looks "
        f"like that class, or its label is wrong.{of_colours}"
    )
    keys = {names[number]: f"k{colour}" for number, colour in colours.items()}
    if len(colours) < len(names):
        keys[f"{'other' if colours else 'all'} classes"] = "grey"
    block = PointMap(drawing, legend(keys, keys.values(), "dot"), tiles, note)
    return Section("map", "Map of the rows", f"{sources}blend/honest_oof.npz; cache · make predict", [block])


def _evenly(rows: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the rows, at equal steps in the order of their labels: no class is left to chance."""
    count = min(len(rows), count)
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    return by_class[(np.arange(count) * len(rows) // max(count, 1)).astype(int)]


def map_chart(
    rows: HonestRows, places: np.ndarray, pictures: np.ndarray, names: Sequence[str], colours: dict[int, int]
) -> Markup:
    """The drawn rows: right ones as dots, wrong ones as crosses above them; a class without a colour is grey.

    places: (n, 2) of the rows.  pictures: (n,) number of the row's picture; -1 = none.  colours: class -> number of its colour.
    """
    with chart(WIDTH, HEIGHT, (6, 6, 6, 6)) as drawing:
        axes = drawing.axes
        low, high = places.min(0), places.max(0)
        # One scale for both axes.
        size = np.array([WIDTH, HEIGHT]) * float(((high - low) / (WIDTH, HEIGHT)).max()) * 1.07
        (left, bottom), (right, top) = (low + high - size) / 2, (low + high + size) / 2
        axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
        axes.spines[:].set(visible=True, color=PLACEHOLDERS["rule"])
        wrong = rows.labels != rows.predicted
        for is_wrong in (False, True):
            # A border in the colour of the page keeps crosses apart from the dots below them.
            border: dict[str, Any] = {
                "markeredgecolor": PLACEHOLDERS["card"],
                "markeredgewidth": 0.8 if is_wrong else 0.0,
                "zorder": 2,
            }
            shape: dict[str, Any] = (
                {"marker": "X", "markersize": 9.5} if is_wrong else {"marker": "o", "markersize": 5.5}
            )
            of_class = {f"c{colour}": rows.labels == number for number, colour in colours.items()}
            for colour, is_of_class in {"soft": ~np.isin(rows.labels, list(colours)), **of_class}.items():
                chosen = (wrong == is_wrong) & is_of_class
                marks = []
                for n in np.flatnonzero(chosen):
                    taken_for = f" predicted as {names[rows.predicted[n]]}" if is_wrong else ", predicted right"
                    text = f"{names[rows.labels[n]]}{taken_for} · {rows.ids[n]}"
                    marks.append(PointMark(text, int(pictures[n])))
                alpha = 0.95 if is_wrong else 0.35 if colour == "soft" else 0.75
                x, y = places[chosen].T
                drawing.points(x, y, marks, colour, alpha=alpha, **border, **shape)
        name_classes(drawing, rows.labels, places, names, colours)
        return drawing.markup(f"map of {len(rows.ids):,} rows, {wrong.sum():,} of them wrong")


def name_classes(
    drawing: Chart, labels: np.ndarray, places: np.ndarray, names: Sequence[str], colours: dict[int, int]
) -> None:
    """Write the name of each coloured class above the point nearest to the median of its points whose name covers no other."""
    pixels = drawing.axes.transData.transform(places) * 72 / drawing.figure.dpi
    taken: list[tuple[float, float, float]] = []  # middle and width of the names
    for number in colours:
        text, own = shortened(names[number], 24), np.flatnonzero(labels == number)
        width, distances = 8.5 * len(text), np.linalg.norm(places[own] - np.median(places[own], axis=0), axis=1)
        for n in own[np.argsort(distances, kind="stable")]:
            x, y = float(np.clip(pixels[n, 0], width / 2 + 8, WIDTH - width / 2 - 8)), float(pixels[n, 1])
            if not any(abs(x - a) < (width + other) / 2 and abs(y - b) < 20 for a, b, other in taken):
                taken.append((x, y, width))
                style: dict[str, Any] = {"ha": "center", "size": NORMAL, "weight": "bold"}
                offset = (x - float(pixels[n, 0]), 7)
                name = drawing.axes.annotate(text, places[n], offset, textcoords="offset points", **style)
                drawing.mark(name, "name")
                break
