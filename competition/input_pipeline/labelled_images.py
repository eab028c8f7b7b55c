"""What a member is trained on and predicts: N rows of a competition, each with its id, image, label and fold.

Rows come from the parts of prepared data ("train", "external", "test"), in the order of the parts and of their index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from competition.files.image_codec import Fit
from competition.input_pipeline.decoded_cache import CacheBudget, Progress, RecordedImages, decode_images
from competition.input_pipeline.decoded_rows import ConcatenatedPixels, Pixels
from competition.prepare.prepared import Prepared


@dataclass(frozen=True)
class Images:
    """N rows of a competition. A row number is a position in these arrays."""

    ids: np.ndarray  # (N,) str, unique
    pixels: Pixels  # (N, H, W, 3) uint8
    labels: np.ndarray  # (N,) int, -1 = unknown; what they stand for: prepare/targets.py
    folds: np.ndarray  # (N,) int; -1 = in no fold: an external or a test image
    readable: np.ndarray  # (N,) bool; False: cannot be decoded, so it is black, and never trained on or predicted
    groups: np.ndarray | None = None  # (N,) int, equal for duplicates of one photo; None: no row has a duplicate


def load_images(
    prepared: Prepared, parts: Sequence[str], size: int, fit: Fit, budget: CacheBudget, progress: Progress
) -> Images:
    """All rows of some parts, with images (size, size, 3) that are decoded once and cached as `budget` allows.

    progress: called with (images decoded, images of the part).  Raises UserError for images that cannot be decoded.
    """
    pixels: list[Pixels] = []
    for part in parts:
        rows = prepared.part(part)
        ids, unreadable = rows["id"].to_numpy(str), (rows["problem"] != "").to_numpy()
        recorded = RecordedImages(prepared.records(part), ids, unreadable, prepared.digest)
        pixels.append(decode_images(recorded, size, fit, budget, progress))
    return with_labels(prepared, parts, pixels[0] if len(pixels) == 1 else ConcatenatedPixels(pixels))


def with_labels(prepared: Prepared, parts: Sequence[str], pixels: Pixels | None = None) -> Images:
    """All rows of some parts, with ids, labels, folds and groups from the index.

    pixels: (N, H, W, 3); None: a black pixel (1, 1, 3) for each image, for heads, which need stored features only.
    """
    rows = pd.concat([prepared.part(part) for part in parts], ignore_index=True)
    pixels = np.broadcast_to(np.uint8(0), (len(rows), 1, 1, 3)) if pixels is None else pixels
    return Images(
        ids=rows["id"].to_numpy(str),
        pixels=pixels,
        labels=rows["label"].to_numpy(),
        folds=rows["fold"].to_numpy(),
        readable=(rows["problem"] == "").to_numpy(),
        groups=rows["group"].to_numpy(),
    )


def sample_rows(images: Images, most: int, seed: int) -> Images:
    """A random sample of at most `most` rows, in their order, as new Images."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(images.ids))[:most])
    return replace(images, **{name: values[rows] for name, values in vars(images).items() if values is not None})
