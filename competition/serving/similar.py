"""The training images most similar to a photo, by the descriptor of `competition.prepare.embedding`.

Similar in colour layout, gradients and colours, not in what a network sees: the descriptor needs no weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from competition.images.cache import cached_images
from competition.images.pixels import Pixels
from competition.prepare.decoding import Fit, decode, encode
from competition.prepare.embedding import describe
from competition.prepare.prepared import Prepared

THUMB = 16  # pixels per side that the descriptor sees
SHOWN = 112  # pixels per side of a picture on the page; smaller ones are enlarged by the browser
CHUNK = 256  # images in memory at once


@dataclass(frozen=True)
class Similar:
    row: int  # of the training rows, in index order
    id: str
    class_name: str
    distance: float  # Euclidean, between descriptors


class TrainingImages:
    """The readable training images in the cache of decoded images, with their descriptors."""

    def __init__(self, rows: pd.DataFrame, classes: tuple[str, ...], pixels: Pixels, fit: Fit) -> None:
        """rows: of the part train, with id, label and problem, in the order of `pixels`."""
        self._ids, self._labels, self._classes = rows["id"].to_numpy(str), rows["label"].to_numpy(), classes
        self._pixels, self._size, self._fit = pixels, pixels.shape[1], fit
        self._rows = np.flatnonzero(((rows["problem"] == "") & (rows["label"] >= 0)).to_numpy())
        chunks = [self._rows[start : start + CHUNK] for start in range(0, len(self._rows), CHUNK)]
        thumbs = [_thumb(image) for chunk in chunks for image in pixels[chunk]]
        self._descriptors = describe(np.array(thumbs, np.uint8).reshape(-1, THUMB, THUMB, 3))

    def most_similar(self, data: bytes, count: int) -> list[Similar]:
        """The `count` nearest images, the nearest first.  data: an encoded image.  Raises BadImage."""
        descriptor = describe(_thumb(decode(data, self._size, self._fit))[None])[0]
        distances = np.linalg.norm(self._descriptors - descriptor, axis=1)
        nearest = np.argsort(distances, kind="stable")[:count]
        return [
            Similar(int(row), str(self._ids[row]), self._classes[int(self._labels[row])], float(distances[n]))
            for n, row in zip(nearest, self._rows[nearest], strict=True)
        ]

    def picture(self, row: int) -> bytes | None:
        """A PNG of one training image; None if the row does not exist or is not readable."""
        if row not in self._rows:
            return None
        image = Image.fromarray(self._pixels[np.array([row])][0])
        image.thumbnail((SHOWN, SHOWN), Image.Resampling.LANCZOS)
        return encode(image, "png")


def cached_training_images(prepared: Prepared, sizes: Iterable[int], fit: Fit, folder: Path) -> TrainingImages | None:
    """The training images at the smallest of `sizes` that the cache in `folder` holds; None if it holds none."""
    rows = prepared.part("train")
    ids = rows["id"].to_numpy(str)
    for size in sorted(set(sizes)):
        pixels = cached_images(folder, prepared.digest, ids, size, fit)
        if pixels is not None:
            return TrainingImages(rows, prepared.competition.classes, pixels, fit)
    return None


def _thumb(image: np.ndarray) -> np.ndarray:
    """(S, S, 3) uint8 -> (THUMB, THUMB, 3) uint8."""
    return np.asarray(Image.fromarray(image).resize((THUMB, THUMB), Image.Resampling.BILINEAR))
