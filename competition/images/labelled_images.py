"""The images of some parts of the index at one size, with their labels and folds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from competition.images.cache import CacheBudget, RecordedImages, decode_images
from competition.images.pixels import ConcatenatedPixels, Pixels
from competition.prepare.decoding import Fit
from competition.prepare.prepared import Prepared

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Images:
    """ids: (N,) str.  pixels: (N, H, W, 3) uint8.  labels: (N,) int, -1 = unknown.  readable: (N,) bool.

    folds: (N,) int; -1 = external image, in no fold.
    groups: (N,) int, equal for duplicates of one photo; None: no row has a duplicate.
    """

    ids: np.ndarray
    pixels: Pixels
    labels: np.ndarray
    folds: np.ndarray
    readable: np.ndarray
    groups: np.ndarray | None = None


def load_images(
    prepared: Prepared, parts: Sequence[str], size: int, fit: Fit, budget: CacheBudget, progress: Progress
) -> Images:
    """All images of some parts (train, external, test) at one size, decoded once and cached as `budget` allows."""
    pixels: list[Pixels] = []
    for part in parts:
        rows = prepared.part(part)
        ids, unreadable = rows["id"].to_numpy(str), (rows["problem"] != "").to_numpy()
        recorded = RecordedImages(prepared.records(part), ids, unreadable, prepared.digest)
        pixels.append(decode_images(recorded, size, fit, budget, progress))
    return _labelled(prepared, parts, pixels[0] if len(pixels) == 1 else ConcatenatedPixels(pixels))


def unread_images(prepared: Prepared, parts: Sequence[str]) -> Images:
    """The rows of some parts with their labels and folds, and black images of one pixel: for what needs features only."""
    count = sum(len(prepared.part(part)) for part in parts)
    return _labelled(prepared, parts, np.broadcast_to(np.uint8(0), (count, 1, 1, 3)))


def _labelled(prepared: Prepared, parts: Sequence[str], pixels: Pixels) -> Images:
    rows = pd.concat([prepared.part(part) for part in parts], ignore_index=True)
    return Images(
        rows["id"].to_numpy(str),
        pixels,
        rows["label"].to_numpy(),
        rows["fold"].to_numpy(),
        (rows["problem"] == "").to_numpy(),
        rows["group"].to_numpy(),
    )


def restricted_to_folds(images: Images, folds: Sequence[int]) -> Images:
    """The same images, with rows of all other folds marked unreadable; external rows (fold -1) stay."""
    return replace(images, readable=images.readable & ((images.folds < 0) | np.isin(images.folds, folds)))


def sample_rows(images: Images, most: int, seed: int) -> Images:
    """A random sample of at most `most` rows, in their order."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(images.ids))[:most])
    return replace(images, **{name: values[rows] for name, values in vars(images).items() if values is not None})
