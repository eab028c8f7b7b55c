"""Random augmentation of training images on the host, one image at a time in OpenCV, which releases the interpreter's lock.

Order: random crop and resizing, one affine map with the flips, colour, random erasing;
augmentations by name (`named_augmentations.py`) come before, mixup and CutMix (`mixup.py`) after. Colour and erasing may run on the
device instead, with the numbers drawn here (`mixup.device_numbers`). The options are numbers of `train` that a study may tune.
Random numbers come from `random_streams.py` only. Every operation rounds to the nearest grey level.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from competition.config.plugins import NO_PLUGINS, Plugins
from competition.input_pipeline.random_streams import CROP, IMAGE, generator

# Every image has a thread of the loader; OpenCV's own threads would compete with them.
cv2.setNumThreads(1)

ERASED = 127  # grey level
CROP_TRIES = 10  # as in torchvision's RandomResizedCrop
ASPECT = 4 / 3  # of a random crop: from 1 / ASPECT to ASPECT, uniform in its logarithm


@dataclass(frozen=True)
class Augmentation:
    flip: str  # none | horizontal | both
    shift: float  # fraction of the side
    zoom: float  # largest change of the scale, as a fraction
    rotate: float  # degrees
    brightness: float  # fraction of the range
    contrast: float  # change of the factor
    saturation: float  # change of the factor
    erase: float  # probability of random erasing
    mixup: float  # alpha of Beta(alpha, alpha); 0 = off
    cutmix: float  # alpha, as for mixup; if both are on, each batch uses one of them, drawn at random
    crop: float = 1.0  # smallest share of the area that a random crop keeps; 1 = off
    augment: tuple[tuple[str, float], ...] = ()  # name in AUGMENTATIONS and strength, applied before the options above
    albumentations: str = ""  # file of a pipeline that is applied before all others; "" = none
    plugins: Plugins = NO_PLUGINS  # that may define the names of `augment`


@dataclass(frozen=True)
class ImageDraws:
    """The random numbers of B images. An option that is off has none."""

    key: np.ndarray  # of the epoch, random_streams.epoch_key
    rows: Sequence[tuple[int, int]]  # (row, occurrence) of each image
    flips: np.ndarray  # (B, 2) bool: left-right, upside-down
    boxes: np.ndarray | None  # (B, 4) int, of the crop in the image as read: first y, end y, first x, end x
    maps: np.ndarray | None  # (B, 2, 3) float64, flips included: output pixel (x, y, 1) -> pixel (x, y) after resizing
    colours: np.ndarray | None  # (B, 3) float64: added grey levels, factors of contrast and saturation
    erased: np.ndarray | None  # (B, 4) int, a box in the result, in the order of `boxes`; empty = not erased


def draw(key: np.ndarray, rows: Sequence[tuple[int, int]], side: int, size: int, options: Augmentation) -> ImageDraws:
    """Draw for B images.  rows: (row, occurrence) of each.  side, size: of an image in pixels, before and after resizing."""
    # Each option has its own columns, so that changing one leaves the draws of the others alone.
    numbers = np.stack([generator(key, *row, IMAGE).random(14) for row in rows])  # uniform in [0, 1)
    signed = 2 * numbers - 1  # uniform in [-1, 1)
    flips = (signed[:, :2] > 0) & [options.flip != "none", options.flip == "both"]
    boxes = maps = colours = erased = None
    if options.crop < 1:
        tries = np.stack([generator(key, *row, CROP).random(4 * CROP_TRIES) for row in rows])
        boxes = crop_boxes(tries, side, options.crop)
    if options.shift or options.zoom or options.rotate:
        # Maps of output to input pixels that zoom, rotate, flip and shift; without a shift the centre is fixed.
        angle, scale = np.deg2rad(signed[:, 2] * options.rotate), 1 + signed[:, 3] * options.zoom
        sign_x, sign_y = np.where(flips, -1.0, 1.0).T
        cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
        linear = np.stack([sign_x * cosine, -sign_x * sine, sign_y * sine, sign_y * cosine], axis=1).reshape(-1, 2, 2)
        centre = np.full(2, (size - 1) / 2)
        offset = centre + signed[:, 4:6] * options.shift * size - linear @ centre
        maps = np.concatenate([linear, offset[..., None]], axis=2)
    if options.brightness or options.contrast or options.saturation:
        limits = [255 * options.brightness, options.contrast, options.saturation]
        colours = signed[:, 6:9] * limits + [0, 1, 1]
    if options.erase:
        # Random erasing (Zhong et al. 2020): 2 to 33 % of the area, cut at the edge.
        area, aspect = 0.02 + 0.31 * numbers[:, 10], np.exp(signed[:, 11])
        sides = np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], axis=1)
        erased = np.where(numbers[:, 9:10] < options.erase, boxes_around(numbers[:, 12:14], sides, size), 0)
    return ImageDraws(key, rows, flips, boxes, maps, colours, erased)


def augment(image: np.ndarray, drawn: ImageDraws, n: int, out: np.ndarray) -> None:
    """Augment image number n.  image: (H, W, 3) uint8, not modified.  out: (size, size, 3) uint8, receives the result."""
    moved = out if drawn.colours is None else np.empty_like(out)  # `out` is written once
    if drawn.boxes is not None:
        top, bottom, left, right = drawn.boxes[n].tolist()
        image = image[top:bottom, left:right]
    if image.shape != out.shape:
        # Averaged over areas where the image gets smaller, else interpolated linearly.
        is_smaller = min(image.shape[:2]) >= len(out)
        image = cv2.resize(image, out.shape[:2], interpolation=cv2.INTER_AREA if is_smaller else cv2.INTER_LINEAR)
    if drawn.maps is not None:
        # With a fourth channel the same map takes about half of the time at 224 pixels and more, and about as long below 128.
        source, flags = cv2.cvtColor(image, cv2.COLOR_RGB2RGBA), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        warped = cv2.warpAffine(source, drawn.maps[n], out.shape[:2], flags=flags, borderMode=cv2.BORDER_REFLECT)
        cv2.cvtColor(warped, cv2.COLOR_RGBA2RGB, dst=moved)
    elif drawn.flips[n].any():
        left_right, upside_down = drawn.flips[n].tolist()
        cv2.flip(image, -1 if left_right and upside_down else 1 if left_right else 0, dst=moved)
    else:
        np.copyto(moved, image)
    if drawn.colours is not None:
        change_colour(moved, drawn.colours[n].tolist(), out)
    if drawn.erased is not None:
        top, bottom, left, right = drawn.erased[n].tolist()
        out[top:bottom, left:right] = ERASED


def crop_boxes(numbers: np.ndarray, side: int, smallest: float) -> np.ndarray:
    """(B, 4) boxes of a random share of the area and aspect ratio, at a random place in an image of `side` pixels.

    numbers: (B, 4 * CROP_TRIES) in [0, 1). The first of CROP_TRIES boxes that fits is taken, else the whole image.
    """
    share, aspect, y, x = numbers.reshape(len(numbers), CROP_TRIES, 4).transpose(2, 0, 1)
    area = side * side * (smallest + (1 - smallest) * share)
    ratio = ASPECT ** (2 * aspect - 1)
    height, width = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
    fits = (height <= side) & (width <= side) & (height > 0) & (width > 0)
    top, left = np.floor(y * (side - height + 1)), np.floor(x * (side - width + 1))
    boxes = np.stack([top, top + height, left, left + width], axis=2).astype(int)
    first = boxes[np.arange(len(boxes)), fits.argmax(1)]
    return np.where(fits.any(axis=1, keepdims=True), first, [0, side, 0, side])


def boxes_around(centres: np.ndarray, sides: np.ndarray, size: int) -> np.ndarray:
    """(B, 4) boxes of the pixels whose centre is inside a rectangle.  centres, sides: (B, 2), y and x, as shares of `size`."""
    low, high = size * (centres - sides / 2) - 0.5, size * (centres + sides / 2) - 0.5
    first, end = (np.clip(np.ceil(edge), 0, size).astype(int) for edge in (low, high))
    return np.stack([first[:, 0], end[:, 0], first[:, 1], end[:, 1]], axis=1)


def change_colour(image: np.ndarray, changes: Sequence[float], out: np.ndarray) -> None:
    """Change brightness, then contrast around the mean, then saturation around the grey value of each pixel.

    image, out: (H, W, 3) uint8.  changes: added grey levels, factor of contrast, factor of saturation. All three are one
    affine map of the colours, so values are rounded and clipped once.
    """
    added, contrast, saturation = changes
    mean = sum(cv2.mean(image)[:3]) / 3 if contrast != 1 else 0.0
    matrix = np.empty((3, 4))
    matrix[:, :3] = contrast * (saturation * np.eye(3) + (1 - saturation) / 3)
    matrix[:, 3] = added + (1 - contrast) * mean
    cv2.transform(image, matrix, dst=out)
