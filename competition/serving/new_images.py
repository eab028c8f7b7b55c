"""New images on the way of the test images: read, decoded alike, predicted by the fold models of one member."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import UserError, first_few
from competition.ensemble.predictions import ViewPredictions, mean_over_folds
from competition.prepare.adapters.files import image_paths
from competition.prepare.decoding import BadImage, Fit, decode, encode_png, normalized

if TYPE_CHECKING:
    from competition.images.labelled_images import Images
    from competition.training.scorer import FoldScorer

NewImage = str | Path | bytes | np.ndarray


@dataclass(frozen=True)
class EncodedImages:
    """names: the path of each image, or "image 3" for one without a path.  data: the encoded images, normalized."""

    names: tuple[str, ...]
    data: tuple[bytes, ...]


def read_new_images(images: NewImage | Sequence[NewImage]) -> EncodedImages:
    """Read paths, encoded bytes and arrays of shape (H, W), (H, W, 3) or (H, W, 4), uint8.

    images: a list of them, an array (N, H, W, 3), or one path of an image or of a folder of images.
    Raises UserError with the number and the first names of images that cannot be read.
    """
    if isinstance(images, str | Path):
        folder = Path(images)
        images = [folder / path for path in image_paths(folder)] if folder.is_dir() else [folder]
    elif isinstance(images, bytes) or (isinstance(images, np.ndarray) and images.ndim < 4):
        raise UserError("one image was found where a list of images was expected; put it into a list: [image]")
    names, data, problems = [], [], []
    for number, image in enumerate(images):
        name = str(image) if isinstance(image, str | Path) else f"image {number}"
        try:
            data.append(normalized(_encoded(image)))
            decode(data[-1], 32, "squash")  # a truncated file may have a valid header
        except (BadImage, OSError) as error:
            problems.append(f"{name} ({error.strerror if isinstance(error, OSError) else error})")
        names.append(name)
    if problems:
        raise UserError(f"{len(problems):,} of {len(names):,} images cannot be read: {first_few(problems, 3)}")
    return EncodedImages(tuple(names), tuple(data))


def decoded(images: EncodedImages, size: int, fit: Fit) -> "Images":
    """The images at the size of a member; the ids are their numbers, because a path may appear twice."""
    from competition.images.labelled_images import Images

    count = len(images.data)
    pixels = np.zeros((count, size, size, 3), np.uint8)
    for number, data in enumerate(images.data):
        pixels[number] = decode(data, size, fit)
    unknown = np.full(count, -1)
    return Images(np.arange(count).astype(str), pixels, unknown, unknown, np.ones(count, bool))


def predict_new_images(
    trainer: "FoldScorer", images: "Images", fold_weights: Sequence[Mapping[str, np.ndarray]], views: Sequence[str]
) -> ViewPredictions:
    """The mean over the fold models of one member of the probabilities under these views, as for test rows."""
    rows = np.arange(len(images.ids))
    return mean_over_folds([trainer.predict(dict(weights), images, rows, views) for weights in fold_weights])


def _encoded(image: NewImage) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        return Path(os.path.expanduser(image)).read_bytes()
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
        raise UserError(
            f"an array of shape {pixels.shape} and type {pixels.dtype} was found; expected uint8 pixels from 0 to 255 of "
            "shape (H, W), (H, W, 3) or (H, W, 4)"
        )
    return encode_png(pixels)
