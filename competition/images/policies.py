"""RandAugment and TrivialAugment: random operations on one image (H, W, 3) uint8, in OpenCV.

Ranges: of RandAugment those that timm calls increasing ("rand-mM-mstd0.5-inc1"), of TrivialAugment those that its authors
and torchvision call wide. Shifts of TrivialAugment are shares of the side, because its 32 pixels were meant for 224.
"""

from collections.abc import Callable, Mapping
from math import cos, pi, sin

import cv2
import numpy as np

PICKS = 2  # operations per image, RandAugment
PROBABILITY = 0.5  # that each is applied
DEVIATION = 0.5  # of the magnitude, from operation to operation
BINS = 31  # magnitudes of TrivialAugment: 0, 1/30, ..., 1

OUTSIDE = (128.0, 128.0, 128.0)  # colour of the pixels from outside the image
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R 601, as in Pillow and OpenCV
LEVELS = np.arange(256.0)
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13  # Pillow's SMOOTH filter

Operation = Callable[[np.ndarray, float], np.ndarray]
Value = Callable[[float, float], float]  # (strength 0..1, sign -1 or 1) -> the number that the operation takes


def rand_augment(image: np.ndarray, rng: np.random.Generator, magnitude: float) -> np.ndarray:
    """RandAugment (Cubuk et al. 2020): PICKS random operations.

    image: (H, W, 3) uint8, not modified.  magnitude: 1 to 10, the mean strength in tenths.
    """
    for _ in range(PICKS):
        name, value = RAND_AUGMENT[rng.integers(len(RAND_AUGMENT))]
        strength = min(max(rng.normal(magnitude, DEVIATION), 0.0), 10.0) / 10
        sign = rng.choice((-1.0, 1.0))
        if rng.random() < PROBABILITY:
            image = OPERATIONS[name](image, value(strength, sign))
    return image


def trivial_augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """TrivialAugment (Müller & Hutter 2021): one random operation of random strength.  image: (H, W, 3) uint8, not modified."""
    name, value = TRIVIAL_AUGMENT[rng.integers(len(TRIVIAL_AUGMENT))]
    strength, sign = rng.integers(BINS) / (BINS - 1), rng.choice((-1.0, 1.0))
    return OPERATIONS[name](image, value(strength, sign))


def _contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Scale the difference from the mean luminance."""
    mean = float(np.dot(LUMA, cv2.mean(image)[:3]))
    return _mapped(image, mean + (LEVELS - mean) * factor)


def _sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """Scale the difference from the smoothed image; the outermost pixels stay."""
    smooth = image.copy()
    smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, SMOOTH)[1:-1, 1:-1]
    return cv2.addWeighted(image, factor, smooth, 1 - factor, 0)


def _autocontrast(image: np.ndarray, _: float) -> np.ndarray:
    """Stretch every channel to the range 0..255."""
    # cv2.reduce takes a tenth of the time of NumPy's min and max over two axes.
    low, high = (
        extreme(cv2.reduce(image, 0, kind), (0, 1)).astype(float)
        for extreme, kind in ((np.min, cv2.REDUCE_MIN), (np.max, cv2.REDUCE_MAX))
    )
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1.0)
    return _mapped(image, (LEVELS[:, None] - np.where(high > low, low, 0)) * scale)


def _mapped(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Replace every value by its entry in the table, (256,) or (256, 3) float, rounded."""
    rounded = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    return cv2.LUT(image, rounded if rounded.ndim == 1 else rounded[:, None])


def _affine(image: np.ndarray, *matrix: tuple[float, float, float]) -> np.ndarray:
    """Output pixel (x, y) is input pixel matrix @ (x, y, 1), from the centre of the image."""
    height, width = image.shape[:2]
    centre, moved = np.array([(width - 1) / 2, (height - 1) / 2]), np.array(matrix, float)
    moved[:, 2] += centre - moved[:, :2] @ centre
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(
        image, moved, (width, height), flags=flags, borderMode=cv2.BORDER_CONSTANT, borderValue=OUTSIDE
    )


# Each takes the image, which it does not modify, and one number, and returns an image of the same shape and dtype.
OPERATIONS: Mapping[str, Operation] = {
    "identity": lambda image, _: image,
    "rotate": lambda image, radians: _affine(image, (cos(radians), -sin(radians), 0), (sin(radians), cos(radians), 0)),
    "shear_x": lambda image, factor: _affine(image, (1, factor, 0), (0, 1, 0)),
    "shear_y": lambda image, factor: _affine(image, (1, 0, 0), (factor, 1, 0)),
    "translate_x": lambda image, share: _affine(image, (1, 0, share * image.shape[1]), (0, 1, 0)),  # of the width
    "translate_y": lambda image, share: _affine(image, (1, 0, 0), (0, 1, share * image.shape[0])),  # of the height
    "brightness": lambda image, factor: _mapped(image, LEVELS * factor),
    "contrast": _contrast,
    # Scales the difference from the luminance of each pixel.
    "colour": lambda image, factor: cv2.transform(image, factor * np.eye(3) + (1 - factor) * LUMA[None]),
    "sharpness": _sharpness,
    "autocontrast": _autocontrast,
    "equalize": lambda image, _: cv2.merge([cv2.equalizeHist(channel) for channel in cv2.split(image)]),
    "invert": lambda image, _: 255 - image,
    "posterize": lambda image, bits: image & np.uint8(256 - 2 ** (8 - int(bits))),  # keeps the highest bits, 0 to 8
    # Inverts all values from the threshold on; adds to all values below 128.
    "solarize": lambda image, threshold: _mapped(image, np.where(threshold > LEVELS, LEVELS, 255 - LEVELS)),
    "solarize_add": lambda image, added: _mapped(image, np.where(LEVELS < 128, LEVELS + int(added), LEVELS)),
}


def _ranges(
    values: Mapping[str, Value | None], colour: float, shear: float, shift: float
) -> tuple[tuple[str, Value], ...]:
    """`values` (None: the operation takes no number), and the operations that both policies have, up to their limits."""
    factors = dict.fromkeys(("colour", "contrast", "brightness", "sharpness"), colour)
    limits = {"shear_x": shear, "shear_y": shear, "translate_x": shift, "translate_y": shift}
    return (
        *((name, value or (lambda strength, sign: 0.0)) for name, value in values.items()),
        *((name, lambda strength, sign, limit=limit: 1 + sign * strength * limit) for name, limit in factors.items()),
        *((name, lambda strength, sign, limit=limit: sign * strength * limit) for name, limit in limits.items()),
    )


RAND_AUGMENT = _ranges(
    {
        "autocontrast": None,
        "equalize": None,
        "invert": None,
        "rotate": lambda strength, sign: sign * strength * (pi / 6),
        "posterize": lambda strength, _: 4 - int(4 * strength),
        "solarize": lambda strength, _: 256 - int(256 * strength),
        "solarize_add": lambda strength, _: int(110 * strength),
    },
    colour=0.9,
    shear=0.3,
    shift=0.45,
)
TRIVIAL_AUGMENT = _ranges(
    {
        "identity": None,
        "autocontrast": None,
        "equalize": None,
        "rotate": lambda strength, sign: sign * strength * (0.75 * pi),
        "posterize": lambda strength, _: 8 - round(6 * strength),
        "solarize": lambda strength, _: 255 * (1 - strength),
    },
    colour=0.99,
    shear=0.99,
    shift=1 / 7,
)
