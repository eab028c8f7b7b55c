"""The report's map of the scored rows in two dimensions: rows with similar features, or similar probabilities, are near."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from competition.ensemble.predictions import positions
from competition.images.cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.classes import HonestRows
from competition.report.map_chart import MapPoints, coloured_classes, map_chart, map_legend
from competition.report.mistakes import most_confident_errors
from competition.report.page import PointMap, Section, Tile
from competition.report.pictures import SMALL_SIZE, data_uri
from competition.workspace.features import feature_table
from competition.workspace.runs import blended_runs
from competition.workspace.workspace import Workspace

MOST_POINTS = 1_000  # t-SNE of them takes 1 to 2 s of one core
FEWEST_POINTS = 12
MOST_PICTURES = 150
COMPONENTS, PERPLEXITY, STEPS = 50, 20.0, 400
LOWEST_PROBABILITY = 1e-4  # smaller ones differ by noise, which their logarithm would enlarge
SEED = 0


@dataclass(frozen=True)
class StoredFeatures:
    """Features of the training rows."""

    member: str  # with the frozen network that they are of
    table: np.ndarray  # (rows of the part train, F) float16 in index order


def stored_features(workspace: Workspace, weights: Mapping[str, float]) -> StoredFeatures | None:
    """The features of the frozen-feature member with the largest weight; None if the blend has none whose features are stored.

    weights: member of the blend -> weight.
    """
    by_weight = sorted(blended_runs(workspace).items(), key=lambda item: -weights.get(item[0], 0.0))
    for name, runs in by_weight:
        if runs[0].member.head is not None:
            table = feature_table(workspace, runs[0].member, "train", "identity")
            if table.is_current:
                return StoredFeatures(name, table.load())
    return None


def map_section(
    rows: HonestRows, prepared: Prepared, pixels: Pixels | None, features: StoredFeatures | None
) -> Section | None:
    """The map with its legend and pictures; None if there are too few rows, or if they do not differ in two dimensions.

    rows: of `honest_rows`, of a single-label competition.  pixels: of the training rows in index order.
    features: None = the rows are compared by their probabilities.
    """
    drawn = drawn_rows(rows.labels, rows.predicted)
    train_rows = positions(prepared.part("train")["id"].to_numpy(str), rows.ids[drawn])
    vectors = features.table[train_rows] if features is not None else log_probabilities(rows.scores[drawn])
    places = map_places(vectors.astype(np.float32))
    if places is None:
        return None
    names = prepared.competition.classes
    points = HonestRows(*(column[drawn] for column in rows))
    pictured = pictured_points(points) if pixels is not None else np.empty(0, int)
    numbers = np.full(len(drawn), -1)
    numbers[pictured] = np.arange(len(pictured))
    colours = coloured_classes(rows.labels, rows.predicted, len(names))
    drawing = map_chart(MapPoints(places, points.ids, points.labels, points.predicted, numbers), names, colours)
    tiles = []
    if pixels is not None:
        for n, image in zip(pictured, pixels[train_rows[pictured]], strict=True):
            label, predicted = names[points.labels[n]], names[points.predicted[n]]
            taken_for = [] if label == predicted else [f"✕ predicted as {predicted}"]
            tiles.append(Tile(*data_uri(image, SMALL_SIZE), [label, *taken_for, str(points.ids[n])]))
    note = map_note(rows, points, features, len(colours) < len(names))
    sources = "features/*/features.npy, " if features is not None else ""
    block = PointMap(drawing, map_legend(names, colours), tiles, note)
    return Section("map", "Map of the rows", f"{sources}blend/honest_oof.npz; cache · make predict", [block])


def drawn_rows(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Numbers of at most MOST_POINTS rows, ascending: the wrong ones up to half, or more if there are too few right ones.

    labels, predicted: (N,) int. Of too many rows, every k-th in the order of their classes is drawn: no class is left to chance.
    """
    wrong, right = np.flatnonzero(labels != predicted), np.flatnonzero(labels == predicted)
    wrong_share = max(MOST_POINTS // 2, MOST_POINTS - len(right))
    drawn_wrong = _evenly(wrong, labels, min(len(wrong), wrong_share))
    drawn_right = _evenly(right, labels, min(len(right), MOST_POINTS - len(drawn_wrong)))
    return np.sort(np.concatenate([drawn_wrong, drawn_right]))


def _evenly(rows: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """`count` of the rows, at equal steps in the order of their labels."""
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    return by_class[(np.arange(count) * len(rows) // max(count, 1)).astype(int)]


def pictured_points(points: HonestRows) -> np.ndarray:
    """Numbers of the points with a picture: wrong rows, the most confident first, then right rows of all classes."""
    wrong = most_confident_errors(points.labels, points.predicted, points.scores, MOST_PICTURES)
    right = np.flatnonzero(points.labels == points.predicted)
    return np.concatenate([wrong, _evenly(right, points.labels, min(len(right), MOST_PICTURES - len(wrong)))])


def log_probabilities(probs: np.ndarray) -> np.ndarray:
    """(N, C) logarithms with a mean of 0 in every row, so that only ratios of probabilities count.  probs: (N, C)."""
    logs = np.log(np.maximum(probs, LOWEST_PROBABILITY))
    return logs - logs.mean(1, keepdims=True)


def map_places(vectors: np.ndarray) -> np.ndarray | None:
    """(N, 2) places in which near vectors are near, by PCA and t-SNE; None for too few rows or fewer than two dimensions.

    vectors: (N, F) float32. PCA has a fixed seed, t-SNE a fixed start, both one thread: equal vectors have equal places.
    """
    vectors = np.nan_to_num(vectors, posinf=0.0, neginf=0.0)
    if len(vectors) < FEWEST_POINTS or vectors.shape[1] < 2 or not np.ptp(vectors, axis=0).any():
        return None
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        count = min(COMPONENTS, *vectors.shape)
        components = PCA(count, svd_solver="randomized", random_state=SEED).fit_transform(vectors)
        spread = components.std(0)
        if spread[1] <= 1e-4 * spread[0]:  # a line, such as the probabilities of two classes
            return None
        start = components[:, :2] / spread[0] * 1e-4  # scikit-learn's init="pca"
        perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init=start, max_iter=STEPS, angle=0.7, n_jobs=1)
        places: np.ndarray = tsne.fit_transform(components)
    return places


def map_note(rows: HonestRows, points: HonestRows, features: StoredFeatures | None, has_grey: bool) -> str:
    """What nearness and the marks mean.  rows: all scored ones.  points: the drawn ones.  has_grey: some classes have no colour."""
    if features is not None:
        near = f"Near each other: images with similar features of the frozen network of {features.member}"
    else:
        near = "Near each other: rows with similar probabilities of the blend, fitted without their fold"
    drawn, wrong, all_wrong = len(points.ids), *(int((one.labels != one.predicted).sum()) for one in (points, rows))
    some = f"; {wrong:,} of {all_wrong:,} wrong and {drawn - wrong:,} of {len(rows.ids) - all_wrong:,} right rows, evenly over the classes"
    coloured = " The classes with the most wrong rows have a colour." if has_grey else ""
    return (
        f"{near}; t-SNE keeps neighbours, so neither the distance between groups nor their size or direction means anything. "
        f"Dots: right; crosses: wrong{some if drawn < len(rows.ids) else ''}. A cross has the colour of its own class: among dots of "
        f"another class it looks like that class, or its label is wrong.{coloured}"
    )
