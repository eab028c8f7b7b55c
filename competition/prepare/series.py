"""Detection of series: different photos of one object, which no image hash finds.

A fold model trained on one photo of a series nearly knows the others, so scores on them are optimistic for photos of other
objects. Two rows of one class are joined where both conditions hold, for both rows:
- Fewer than CHANCE rows of the class are expected this close by chance. The number of rows within distance x grows as
  x ** d; d and the scale come from the row's distances to the nearer half of its class, beyond any series.
- They are closer than NEARER times the nearest row of any other class.

Measured on the flowers of Oxford 102 at 128 px (commit 2739021): of 500 photos in planted series (crop, rotation,
light) 52 % are joined, of 1,920 photos that are all in series 60 %; of the photos with permuted labels .0003, of digits
none. 1.6 % of the other photos of this set are joined: real series, as far as its contact sheet shows. 16,000 rows of
100 classes take 1.0 s of CPU time. On 200 flower photos of five classes: 83 % and 67 %, and none of the permuted ones.

Flowers of one colour before one background are joined as well, which counts where there are few series: of 9 photos that are
joined among 160 of these, 7 are of different flowers. Their distances tell: 94 of the 106 joined photos of Oxford 102 (28 of 32 pairs
look right) are closer than CLOSE to another of their series, but none of these 9, and none of those that are joined in 60 sets without
series (100 photos, each of another kind of flower, in five made-up classes: 0.6 to 1 % are joined).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from competition.prepare.duplicates import merged

CHANCE = 0.1  # expected rows of the class at this distance or closer
NEARER = 0.9  # of the distance to the nearest row of another class
LEAST = 8  # rows of a class below which it is not searched
NEAR, HALF = 0.25, 0.5  # quantiles of a row's distances within its class
SAMPLE = 2048  # rows of a class from which these quantiles are taken
REFERENCES = 8192  # rows of all classes, searched for the nearest row of another class
BLOCK = 512  # rows of a table of distances in memory at once
CLOSE = 0.45  # distance to the nearest photo of its series below which a photo is hardly joined by chance
NOTED = 0.01  # share of the training rows in series across folds below which nothing is reported
SHEET_SERIES, SHEET_PHOTOS = 16, 6  # on the contact sheet, at most
# Of the image descriptors.
LAYOUT_CELLS = 4  # a side
GRADIENT_CELLS = 2  # a side
ORIENTATIONS = 8  # over half a turn
LEVELS = 4  # of each colour channel in the histogram
SIZE = LAYOUT_CELLS**2 * 3 + GRADIENT_CELLS**2 * ORIENTATIONS + LEVELS**3  # 144
CHUNK = 4096  # images in memory at once as float32


def image_descriptors(thumbs: np.ndarray) -> np.ndarray:
    """Return (N, SIZE) float32 descriptors, to be compared by Euclidean distance.  thumbs: (N, S, S, 3) uint8, 4 | S.

    Coarse colour layout, gradient orientations and a colour histogram, without a neural network: photos of one object in one
    place are close to each other. Each of the three parts has a norm of at most 1. The layout does not depend on brightness
    and hardly on contrast.
    On series planted among Oxford 102 photos the rule of this module joins 53 % of the planted rows with it and 57 % with the
    pooled features of a MobileNetV2 (alpha 0.35, ImageNet weights, 128 px); with permuted labels it joins 0.03 % and 0.13 %.
    """
    pieces = [_descriptors_of(thumbs[start : start + CHUNK]) for start in range(0, len(thumbs), CHUNK)]
    return np.concatenate(pieces) if pieces else np.zeros((0, SIZE), np.float32)


def _descriptors_of(thumbs: np.ndarray) -> np.ndarray:
    colours = thumbs.astype(np.float32) / 255
    layout = _cell_means(colours, LAYOUT_CELLS)
    layout -= layout.mean(1, keepdims=True)
    layout /= np.linalg.norm(layout, axis=1, keepdims=True) + 0.5
    grey = colours @ np.array([0.299, 0.587, 0.114], np.float32)
    across, down = np.zeros_like(grey), np.zeros_like(grey)
    across[:, :, 1:-1] = grey[:, :, 2:] - grey[:, :, :-2]
    down[:, 1:-1] = grey[:, 2:] - grey[:, :-2]
    magnitude = np.hypot(across, down)[..., None]
    place = np.arctan2(down, across) % np.pi / np.pi * ORIENTATIONS
    lower, share = (np.floor(place).astype(int) % ORIENTATIONS)[..., None], (place - np.floor(place))[..., None]
    # The gradient's magnitude, shared between the two nearest orientations.
    orientations = np.zeros((*grey.shape, ORIENTATIONS), np.float32)
    np.put_along_axis(orientations, lower, magnitude * (1 - share), -1)
    np.put_along_axis(orientations, (lower + 1) % ORIENTATIONS, magnitude * share, -1)
    gradients = np.sqrt(_cell_means(orientations, GRADIENT_CELLS))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True) + 0.1
    # Square roots of the shares of the pixels in each cube of colours (Hellinger distance).
    levels = thumbs.astype(np.int64) * LEVELS // 256
    bins = (levels @ np.array([LEVELS**2, LEVELS, 1])).reshape(len(thumbs), -1)
    bins += np.arange(len(thumbs))[:, None] * LEVELS**3
    counts = np.bincount(bins.ravel(), minlength=len(thumbs) * LEVELS**3).reshape(len(thumbs), -1)
    histogram = np.sqrt(counts / max(bins.shape[1], 1)).astype(np.float32)
    return np.concatenate([layout, gradients, histogram], axis=1)


def _cell_means(values: np.ndarray, cells: int) -> np.ndarray:
    """(N, S, S, K) -> (N, cells * cells * K)."""
    count, size, _, depth = values.shape
    side = size // cells
    return values.reshape(count, cells, side, cells, side, depth).mean((2, 4)).reshape(count, -1)


def find_series(index: pd.DataFrame, embedding: np.ndarray) -> pd.DataFrame:
    """Return series, id, label, nearest (id of the nearest row of the series) and distance of all training rows in a series.

    index: with `group` of the duplicates.  embedding: (N, F) float32, by row of the index.
    Duplicates of one group belong to one series, but do not form one by themselves. The number of a series is that of its first row.
    """
    table = index.reset_index(drop=True)
    rows = np.flatnonzero((table["part"] == "train") & (table["problem"] == ""))
    labels, groups = table["label"].to_numpy()[rows], table["group"].to_numpy()[rows]
    a, b, distance = series_pairs(embedding[rows], labels)
    across_groups = groups[a] != groups[b]
    a, b, distance = a[across_groups], b[across_groups], distance[across_groups]
    series = merged(groups, a, b)
    ids = table["id"].to_numpy()[rows]
    pairs = pd.DataFrame({"row": np.r_[a, b], "nearest": ids[np.r_[b, a]], "distance": np.r_[distance, distance]})
    closest = pairs.sort_values("distance", ascending=False, kind="stable").drop_duplicates("row", keep="last")
    members = pd.DataFrame({"series": rows[series], "id": ids, "label": labels})[np.isin(series, series[a])]
    members = members.join(closest.set_index("row")).fillna({"nearest": "", "distance": 0.0})
    members["distance"] = members["distance"].astype(np.float64).round(4)
    return members.sort_values(["series", "id"], ignore_index=True)


def series_pairs(embedding: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (a, b, distance): row numbers a < b of all pairs of rows that look like one series.  labels: (N,) int."""
    other_class = _nearest_of_other_classes(embedding, labels)
    pairs = [(np.zeros(0, int), np.zeros(0, int), np.zeros(0))]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) >= LEAST:
            radius = np.minimum(_radius(embedding[rows]), NEARER * other_class[rows])
            for start in range(0, len(rows), BLOCK):
                here = slice(start, start + BLOCK)
                apart = distances(embedding[rows[here]], embedding[rows[start:]])
                # Within the radius of both.
                a, b = np.nonzero(apart < np.minimum(radius[here, None], radius[None, start:]))
                a, b = a[b > a], b[b > a]
                pairs.append((rows[start + a], rows[start + b], apart[a, b]))
    a, b, distance = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return a, b, distance


def crossing(series: Mapping[str, int], ids: np.ndarray, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (N,) bool, whether another row of the series is in another fold, and (N,) int, the number of the series, -1 = none.

    series: id -> number.  ids: (N,) str.  folds: (N,) int.
    """
    number = np.array([series.get(row_id, -1) for row_id in ids], int)
    table = pd.DataFrame({"series": number, "fold": folds})
    return (table.groupby("series")["fold"].transform("nunique").to_numpy() > 1) & (number >= 0), number


def distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return (n, m) float32 Euclidean distances between the rows of two arrays."""
    squares = (left * left).sum(1)[:, None] + (right * right).sum(1)[None] - 2 * left @ right.T
    return np.sqrt(np.maximum(squares, 0))


def _radius(rows: np.ndarray) -> np.ndarray:
    """(n,) distance within which CHANCE other rows of the class are expected by chance.  rows: (n, F) of one class."""
    sample = np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(int)
    near, half = np.empty(len(rows)), np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):
        here = np.arange(start, min(start + BLOCK, len(rows)))
        apart = distances(rows[here], rows[sample])
        apart[here[:, None] == sample[None]] = np.nan  # a row is not its own neighbour
        near[here], half[here] = np.nanquantile(apart, [NEAR, HALF], axis=1)
    growth = np.mean(np.log(np.maximum(half, 1e-9) / np.maximum(near, 1e-9)))
    dimension = np.log(HALF / NEAR) / max(growth, 1e-6)
    return half * (CHANCE / (HALF * (len(rows) - 1))) ** (1 / dimension)


def _nearest_of_other_classes(embedding: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N,) distance to the nearest of at most REFERENCES rows that is of another class; inf where there is none."""
    sample = np.linspace(0, len(labels) - 1, min(len(labels), REFERENCES)).astype(int)
    nearest = np.empty(len(labels))
    for start in range(0, len(labels), BLOCK):
        here = slice(start, start + BLOCK)
        apart = distances(embedding[here], embedding[sample])
        apart[labels[here, None] == labels[sample][None]] = np.inf
        nearest[here] = apart.min(1, initial=np.inf)
    return nearest


def may_be_chance(members: pd.DataFrame, rows: int) -> bool:
    """Return True if few photos are in series, and most of them are not CLOSE to another one.

    members: of find_series.  rows: all training rows.
    """
    is_close = (members["nearest"] != "") & (members["distance"] < CLOSE)
    return len(members) <= CHANCE * rows and 2 * int(is_close.sum()) < len(members)


def sheet_tiles(members: pd.DataFrame, index: pd.DataFrame) -> dict[str, str]:
    """Return id -> caption, with the number in series.csv, for a contact sheet of the largest series.  members: of find_series."""
    fold = dict(zip(index["id"], index["fold"].astype(int)))
    largest = members["series"].value_counts().index[:SHEET_SERIES]
    return {
        str(row_id): f"series {number}\n{row_id}, fold {fold[row_id]}"
        for number in largest
        for row_id in members.loc[members["series"] == number, "id"][:SHEET_PHOTOS]
    }
