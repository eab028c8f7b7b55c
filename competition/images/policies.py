"""RandAugment and TrivialAugment: random operations on one image.

Ranges: of RandAugment those that timm calls increasing ("rand-mM-mstd0.5-inc1"), of TrivialAugment those that its authors
and torchvision call wide. Shifts of TrivialAugment are shares of the side, because its 32 pixels were meant for 224.
"""

from collections.abc import Callable
from math import pi

import numpy as np

from competition.images import image_operations as of
from competition.images.image_operations import Operation

OPERATIONS = 2  # per image, RandAugment
PROBABILITY = 0.5  # that each is applied
DEVIATION = 0.5  # of the magnitude, from operation to operation
BINS = 31  # magnitudes of TrivialAugment: 0, 1/30, ..., 1

Value = Callable[[float, float], float]  # (strength 0..1, sign -1 or 1) -> the number that the operation takes
Range = tuple[Operation, Value]


def _signed(limit: float) -> Value:
    return lambda strength, sign: sign * strength * limit


def _factor(limit: float) -> Value:
    return lambda strength, sign: 1 + sign * strength * limit


def _unused(strength: float, sign: float) -> float:
    return 0.0


def _colours_and_shifts(colour: float, shear: float, shift: float) -> list[Range]:
    """The operations that both policies have, each up to its limit."""
    colours = (of.colour, of.contrast, of.brightness, of.sharpness)
    limits = {of.shear_x: shear, of.shear_y: shear, of.translate_x: shift, of.translate_y: shift}
    signed = [(operation, _signed(limit)) for operation, limit in limits.items()]
    return [*((operation, _factor(colour)) for operation in colours), *signed]


RAND_AUGMENT: tuple[Range, ...] = (
    (of.autocontrast, _unused),
    (of.equalize, _unused),
    (of.invert, _unused),
    (of.rotate, _signed(pi / 6)),
    (of.posterize, lambda strength, _: 4 - int(4 * strength)),
    (of.solarize, lambda strength, _: 256 - int(256 * strength)),
    (of.solarize_add, lambda strength, _: int(110 * strength)),
    *_colours_and_shifts(0.9, 0.3, 0.45),
)
TRIVIAL_AUGMENT: tuple[Range, ...] = (
    (of.identity, _unused),
    (of.autocontrast, _unused),
    (of.equalize, _unused),
    (of.rotate, _signed(0.75 * pi)),
    (of.posterize, lambda strength, _: 8 - round(6 * strength)),
    (of.solarize, lambda strength, _: 255 * (1 - strength)),
    *_colours_and_shifts(0.99, 0.99, 1 / 7),
)


def rand_augment(image: np.ndarray, rng: np.random.Generator, magnitude: float) -> np.ndarray:
    """RandAugment (Cubuk et al. 2020): OPERATIONS random operations.

    image: (H, W, 3) uint8, not modified.  magnitude: 1 to 10, the mean strength in tenths.
    """
    for _ in range(OPERATIONS):
        operation, value = RAND_AUGMENT[rng.integers(len(RAND_AUGMENT))]
        strength = min(max(rng.normal(magnitude, DEVIATION), 0.0), 10.0) / 10
        sign = rng.choice((-1.0, 1.0))
        if rng.random() < PROBABILITY:
            image = operation(image, value(strength, sign))
    return image


def trivial_augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """TrivialAugment (Müller & Hutter 2021): one random operation of random strength.  image: (H, W, 3) uint8, not modified."""
    operation, value = TRIVIAL_AUGMENT[rng.integers(len(TRIVIAL_AUGMENT))]
    strength, sign = rng.integers(BINS) / (BINS - 1), rng.choice((-1.0, 1.0))
    return operation(image, value(strength, sign))
