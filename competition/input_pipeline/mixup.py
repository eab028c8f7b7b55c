"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) of every image with the one before it in the batch."""

from dataclasses import dataclass

import cv2
import numpy as np

from competition.config.params import Train
from competition.input_pipeline.augment import Augmentation, ImageDraws, boxes_around
from competition.input_pipeline.random_streams import BATCH, MIX, generator


@dataclass(frozen=True)
class Mix:
    """What B images get from the images before them: a share of each pixel (mixup), or a box (CutMix)."""

    own_share: np.ndarray  # (B,) float64, share that an image keeps of itself, and of its targets
    boxes: np.ndarray | None  # (B, 4) int: first y, end y, first x, end x; None: mixup


def draw_mix(drawn: ImageDraws, step: int, size: int, options: Augmentation) -> Mix | None:
    """Draw for B images of one step; None if neither is on.  step: of the epoch; draws which of the two, if both are on."""
    if not (options.mixup or options.cutmix):
        return None
    both = options.mixup and options.cutmix
    is_mixup = generator(drawn.key, step, 0, BATCH).random() < 0.5 if both else bool(options.mixup)
    alpha = options.mixup if is_mixup else options.cutmix
    generators = [generator(drawn.key, *row, MIX) for row in drawn.rows]
    numbers = np.array([(rng.beta(alpha, alpha), *rng.random(2)) for rng in generators])
    if is_mixup:
        return Mix(numbers[:, 0], None)
    sides = np.sqrt(1 - numbers[:, :1]).repeat(2, axis=1)
    boxes = boxes_around(numbers[:, 1:], sides, size)
    # Measured, because a rectangle that crosses the edge replaces less than was drawn.
    replaced = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2]) / size**2
    return Mix(1 - replaced, boxes)


def mix_images(images: np.ndarray, targets: np.ndarray, mix: Mix, own: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Mix some images with those before them in the batch, in place, and return the targets (m, C) of the mixed ones.

    images: (n, H, W, 3) uint8.  targets: (n, C) float32.  own, before: (m,) int, ascending places in `images` of the images to
    mix and of the one before each: one place less, and for the first image of a batch the last place.
    """
    pairs = list(zip(own.tolist(), before.tolist(), strict=True))
    unmixed = {place: images[place].copy() for n, place in pairs if place >= n}
    for n, place in reversed(pairs):  # downwards, so that the image before is not mixed yet
        other = unmixed[place] if place >= n else images[place]
        if mix.boxes is None:
            share = float(mix.own_share[n])
            cv2.addWeighted(images[n], share, other, 1 - share, 0, dst=images[n])
        else:
            top, bottom, left, right = mix.boxes[n].tolist()
            images[n, top:bottom, left:right] = other[top:bottom, left:right]
    shares = mix.own_share[own].astype(np.float32)[:, None]
    return shares * targets[own] + (1 - shares) * targets[before]


# The random numbers of those augmentations that may run on the device: colour, erasing, mixup and CutMix. The host draws them
# and sends them beside the images, because a TPU has no gamma distribution, and so that the same numbers are used wherever the
# operations run (training/device_augmentation.py). Columns: added grey levels, factors of contrast and saturation; erased box;
# share that mixup keeps; box of CutMix. A box is its first y, end y, first x, end x; it is empty where the option is off.
COLOUR, ERASED, OWN_SHARE, CUT, COUNT = slice(0, 3), slice(3, 7), 7, slice(8, 12), 12


def has_device_part(options: Augmentation | Train) -> bool:
    """Whether there is anything that could run on the device."""
    colour = options.brightness or options.contrast or options.saturation
    return bool(colour or options.erase or options.mixup or options.cutmix)


def device_numbers(drawn: ImageDraws, mix: Mix | None) -> np.ndarray:
    """(B, COUNT) float32."""
    numbers = np.zeros((len(drawn.rows), COUNT), np.float32)
    numbers[:, COLOUR] = (0, 1, 1) if drawn.colours is None else drawn.colours
    numbers[:, ERASED] = 0 if drawn.erased is None else drawn.erased
    numbers[:, OWN_SHARE] = mix.own_share if mix is not None and mix.boxes is None else 1
    numbers[:, CUT] = 0 if mix is None or mix.boxes is None else mix.boxes
    return numbers
