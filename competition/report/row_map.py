"""The report's map of the scored rows in two dimensions: rows with similar features, or similar probabilities, are near."""

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from threadpoolctl import threadpool_limits

from competition.ensemble.stored_predictions import positions
from competition.input_pipeline.decoded_cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.charts import legend
from competition.report.classes import HonestRows, most_confident_errors
from competition.report.page import PointMap, Section
from competition.report.pictures import row_tiles
from competition.report.svg import NORMAL, Chart, shortened
from competition.workspace.features_and_soft_labels import feature_table
from competition.workspace.runs import blended_runs
from competition.workspace.workspace import Workspace

MOST_POINTS = 400  # the time of t-SNE grows with their square
FEWEST_POINTS = 12
MOST_PICTURES = 150
LOWEST_PROBABILITY = 1e-4  # smaller ones differ by noise, which their logarithm would enlarge
WIDTH, HEIGHT = 660.0, 540.0  # pixels
COLOURED = 12  # classes, at most
COMPONENTS, NEIGHBOURS = 50, 15  # of the vectors, and of a row, that t-SNE works with
EARLY_STEPS, STEPS = 100, 250  # with exaggerated attraction; all
EXAGGERATION = 12.0


def stored_features(workspace: Workspace, weights: Mapping[str, float]) -> tuple[str, np.ndarray] | None:
    """(name, features) of the frozen-feature member with the largest weight whose features are stored; None if the blend has none.

    The features are (rows of the part train, F) float16 in index order.  weights: member of the blend -> weight.
    """
    by_weight = sorted(blended_runs(workspace).items(), key=lambda item: -weights.get(item[0], 0.0))
    for name, runs in by_weight:
        if runs[0].member.head is not None:
            table = feature_table(workspace, runs[0].member, "train", "identity")
            if table.is_current:
                return name, np.load(table.file, mmap_mode="r", allow_pickle=False)
    return None


def map_section(
    rows: HonestRows, prepared: Prepared, pixels: Pixels | None, features: tuple[str, np.ndarray] | None
) -> Section | None:
    """The map with its legend and pictures; None if there are too few rows, or if they do not differ in two dimensions.

    rows: of `honest_rows`, of a single-label competition.  pixels: of the training rows in index order.
    features: of `stored_features`; None = the rows are compared by their probabilities.
    """
    # The wrong rows up to half of the points, or more if there are too few right ones.
    is_wrong = rows.labels != rows.predicted
    wrong, right = np.flatnonzero(is_wrong), np.flatnonzero(~is_wrong)
    drawn_wrong = _evenly(wrong, rows.labels, max(MOST_POINTS // 2, MOST_POINTS - len(right)))
    drawn_right = _evenly(right, rows.labels, MOST_POINTS - len(drawn_wrong))
    drawn = np.sort(np.concatenate([drawn_wrong, drawn_right]))
    train_rows = positions(prepared.part("train")["id"].to_numpy(str), rows.ids[drawn])
    if features is not None:
        vectors = features[1][train_rows]
        near = f"images with similar features of the frozen network of {features[0]}"
        sources = "features/*/features.npy, "
    else:  # logarithms with a mean of 0 in every row, so that only ratios of probabilities count
        logs = np.log(np.maximum(rows.scores[drawn], LOWEST_PROBABILITY))
        vectors = logs - logs.mean(1, keepdims=True)
        near, sources = "rows with similar probabilities of the blend, fitted without their fold", ""
    places = map_places(vectors.astype(np.float32)) if len(drawn) >= FEWEST_POINTS else None
    if places is None:
        return None
    names = prepared.competition.classes
    points = HonestRows(*(column[drawn] for column in rows))
    pictured, numbers = np.empty(0, int), np.full(len(drawn), -1)
    if pixels is not None:  # of wrong rows, the most confident first, then of right rows of all classes
        errors = most_confident_errors(points.labels, points.predicted, points.scores, MOST_PICTURES)
        right = np.flatnonzero(points.labels == points.predicted)
        pictured = np.concatenate([errors, _evenly(right, points.labels, MOST_PICTURES - len(errors))])
    numbers[pictured] = np.arange(len(pictured))
    # The classes with the most wrong rows, of them or taken for them.
    mistaken = np.concatenate([rows.labels[is_wrong], rows.predicted[is_wrong]])
    coloured = np.argsort(-np.bincount(mistaken, minlength=len(names)), kind="stable")[:COLOURED]
    colours = {int(number): n for n, number in enumerate(np.sort(coloured))}
    lines = []
    for n in pictured:
        label, predicted = names[points.labels[n]], names[points.predicted[n]]
        lines.append([label, *([] if label == predicted else [f"✕ predicted as {predicted}"]), str(points.ids[n])])
    some = ""
    if len(drawn) < len(rows.ids):
        some = f"; {len(drawn):,} of {len(rows.ids):,} rows, {len(drawn_wrong):,} of the {len(wrong):,} wrong ones among them"
    note = (
        f"Near each other: {near}; t-SNE keeps neighbours, so neither the distance between groups nor their size or direction means "
        f"anything. Small: right; large with a border: wrong{some}. A wrong row has the colour of its own class: among dots of another "
        "class it looks like that class, or its label is wrong."
    )
    keys = {names[number]: f"k{colour}" for number, colour in colours.items()}
    if len(colours) < len(names):
        keys["other classes"] = "grey"
        note += " The classes with the most wrong rows have a colour."
    drawing = map_chart(points, places, numbers, names, colours)
    tiles = row_tiles(prepared, points.ids[pictured], lines, pixels)
    block = PointMap(drawing, legend(keys, keys.values(), "dot"), tiles, note)
    return Section("map", "Map of the rows", f"{sources}blend/honest_oof.npz; cache · make predict", [block])


def _evenly(rows: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the rows, at equal steps in the order of their labels: no class is left to chance."""
    count = min(len(rows), count)
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    return by_class[(np.arange(count) * len(rows) // max(count, 1)).astype(int)]


def map_places(vectors: np.ndarray) -> np.ndarray | None:
    """(N, 2) float32 places in which near vectors are near; None if the vectors differ in fewer than two dimensions.

    vectors: (N, F) float32, N >= 3. By PCA and t-SNE (van der Maaten and Hinton 2008) with equal attraction of the nearest neighbours in
    place of a perplexity. The start is fixed and there is one thread: equal vectors have equal places. Importing scikit-learn's t-SNE
    takes longer than these steps.
    """
    vectors, count = np.nan_to_num(vectors, posinf=0.0, neginf=0.0).astype(np.float64), len(vectors)
    vectors -= vectors.mean(0)
    with threadpool_limits(limits=1):
        variances, axes = np.linalg.eigh(vectors @ vectors.T)  # of the rows: there are fewer of them than features
        kept = min(COMPONENTS, *vectors.shape)
        spread = np.sqrt(np.maximum(variances[: -kept - 1 : -1], 0.0))
        if kept < 2 or spread[1] <= 1e-4 * spread[0]:  # a line, such as the probabilities of two classes
            return None
        components = axes[:, : -kept - 1 : -1] * spread  # the first two are the start
        squares = (components**2).sum(1)
        distances = squares[:, None] + squares - 2 * components @ components.T
        np.fill_diagonal(distances, np.inf)
        nearest = np.argsort(distances, axis=1, kind="stable")[:, : min(NEIGHBOURS, count - 1)]
        attraction = np.zeros((count, count), np.float32)
        np.put_along_axis(attraction, nearest, 0.5 / nearest.size, axis=1)
        attraction += attraction.T
        places = (components[:, :2] / components[:, 0].std() * 1e-4).astype(np.float32)
        velocity, gains, rate = np.zeros_like(places), np.ones_like(places), max(count / EXAGGERATION / 4, 50.0)
        ones = np.ones((count, 1), np.float32)
        for step in range(STEPS):
            is_early = step < EARLY_STEPS
            squared = (places**2).sum(1, keepdims=True)
            # 1 + squared distance
            kernel = np.hstack([-2 * places, squared + 1, ones]) @ np.hstack([places, ones, squared]).T
            np.reciprocal(kernel, out=kernel)
            np.fill_diagonal(kernel, 0)
            forces = kernel * (-1 / kernel.sum())
            forces += attraction * np.float32(EXAGGERATION) if is_early else attraction
            forces *= kernel
            gradient = 4 * (forces.sum(1, keepdims=True) * places - forces @ places)
            gains = np.maximum(np.where(gradient * velocity < 0, gains + 0.2, gains * 0.8), 0.01)
            velocity = (0.5 if is_early else 0.8) * velocity - rate * gains * gradient
            places += velocity
    return places


def map_chart(
    rows: HonestRows, places: np.ndarray, pictures: np.ndarray, names: Sequence[str], colours: Mapping[int, int]
) -> Markup:
    """The drawn rows, wrong ones larger, with a border and above the right ones; a class without a colour is grey.

    places: (n, 2) of the rows.  pictures: (n,) number of the row's picture; -1 = none.  colours: class -> number of its colour.
    """
    low, high = places.min(0), places.max(0)
    # One scale for both axes.
    size = np.array([WIDTH, HEIGHT]) * float(((high - low) / (WIDTH, HEIGHT)).max()) * 1.07
    (left, bottom), (right, top) = (low + high - size) / 2, (low + high + size) / 2
    drawing = Chart((WIDTH, HEIGHT), (6, 6, 6, 6), (left, right), (bottom, top))
    wrong = rows.labels != rows.predicted
    for n in np.argsort(wrong, kind="stable"):
        label = int(rows.labels[n])
        colour, opacity = (f"c{colours[label]}", 0.75) if label in colours else ("soft", 0.35)
        style = {"r": 5.0, "stroke": "ink", "stroke_width": 1.5} if wrong[n] else {"r": 3.0, "opacity": opacity}
        taken_for = f" predicted as {names[rows.predicted[n]]}" if wrong[n] else ", predicted right"
        (point,) = drawing.dots(
            places[n, 0], places[n, 1], colour, "point", [f"{names[label]}{taken_for} · {rows.ids[n]}"], **style
        )
        if pictures[n] >= 0:
            point.set("data-picture", str(pictures[n]))
    # The name of each coloured class above the point nearest to the median of its points whose name covers no other.
    pixels = drawing.pixels(*places.T)
    taken: list[tuple[float, float, float]] = []  # middle and width of the names
    for number in colours:
        text, own = shortened(names[number], 24), np.flatnonzero(rows.labels == number)
        width, distances = 8.5 * len(text), np.linalg.norm(places[own] - np.median(places[own], axis=0), axis=1)
        for n in own[np.argsort(distances, kind="stable")]:
            x, y = float(np.clip(pixels[n, 0], width / 2 + 8, WIDTH - width / 2 - 8)), float(pixels[n, 1])
            if not any(abs(x - a) < (width + other) / 2 and abs(y - b) < 20 for a, b, other in taken):
                taken.append((x, y, width))
                style = {"class": "name", "font_size": NORMAL, "font_weight": "600", "text_anchor": "middle"}
                drawing.write(x, y - 8, text, "ink", **style)
                break
    return drawing.markup(f"map of {len(rows.ids):,} rows, {wrong.sum():,} of them wrong")
