"""The operations of RandAugment and TrivialAugment on one image (H, W, 3) uint8, in OpenCV.

Each takes the image, which it does not modify, and one number, and returns an image of the same shape and dtype. Pixels
from outside the image are mid-grey.
"""

from collections.abc import Callable
from math import cos, sin

import cv2
import numpy as np

Operation = Callable[[np.ndarray, float], np.ndarray]

OUTSIDE = (128.0, 128.0, 128.0)
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R 601, as in Pillow and OpenCV
LEVELS = np.arange(256.0)
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13  # Pillow's SMOOTH filter


def identity(image: np.ndarray, _: float = 0.0) -> np.ndarray:
    return image


def rotate(image: np.ndarray, radians: float) -> np.ndarray:
    return _affine(image, [[cos(radians), -sin(radians), 0], [sin(radians), cos(radians), 0]])


def shear_x(image: np.ndarray, factor: float) -> np.ndarray:
    return _affine(image, [[1, factor, 0], [0, 1, 0]])


def shear_y(image: np.ndarray, factor: float) -> np.ndarray:
    return _affine(image, [[1, 0, 0], [factor, 1, 0]])


def translate_x(image: np.ndarray, share: float) -> np.ndarray:
    """share: of the width."""
    return _affine(image, [[1, 0, share * image.shape[1]], [0, 1, 0]])


def translate_y(image: np.ndarray, share: float) -> np.ndarray:
    """share: of the height."""
    return _affine(image, [[1, 0, 0], [0, 1, share * image.shape[0]]])


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    return _mapped(image, LEVELS * factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Scale the difference from the mean luminance."""
    mean = float(np.dot(LUMA, cv2.mean(image)[:3]))
    return _mapped(image, mean + (LEVELS - mean) * factor)


def colour(image: np.ndarray, factor: float) -> np.ndarray:
    """Scale the difference from the luminance of each pixel."""
    return cv2.transform(image, factor * np.eye(3) + (1 - factor) * LUMA[None])


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """Scale the difference from the smoothed image; the outermost pixels stay."""
    smooth = image.copy()
    smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, SMOOTH)[1:-1, 1:-1]
    return cv2.addWeighted(image, factor, smooth, 1 - factor, 0)


def autocontrast(image: np.ndarray, _: float = 0.0) -> np.ndarray:
    """Stretch every channel to the range 0..255."""
    low, high = image.min((0, 1)).astype(float), image.max((0, 1)).astype(float)
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1.0)
    return _mapped(image, (LEVELS[:, None] - np.where(high > low, low, 0)) * scale)


def equalize(image: np.ndarray, _: float = 0.0) -> np.ndarray:
    """Equalise the histogram of every channel."""
    return cv2.merge([cv2.equalizeHist(channel) for channel in cv2.split(image)])


def invert(image: np.ndarray, _: float = 0.0) -> np.ndarray:
    return 255 - image


def posterize(image: np.ndarray, bits: float) -> np.ndarray:
    """Keep the highest `bits` bits, 0 to 8."""
    return image & np.uint8(256 - 2 ** (8 - int(bits)))


def solarize(image: np.ndarray, threshold: float) -> np.ndarray:
    """Invert all values from the threshold on."""
    return _mapped(image, np.where(threshold > LEVELS, LEVELS, 255 - LEVELS))


def solarize_add(image: np.ndarray, added: float) -> np.ndarray:
    """Add to all values below 128."""
    return _mapped(image, np.where(LEVELS < 128, LEVELS + int(added), LEVELS))


def _mapped(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Replace every value by its entry in the table, (256,) or (256, 3) float, rounded."""
    rounded = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    return cv2.LUT(image, rounded if rounded.ndim == 1 else rounded[:, None])


def _affine(image: np.ndarray, matrix: list[list[float]]) -> np.ndarray:
    """Output pixel (x, y) is input pixel matrix @ (x, y, 1), from the centre of the image."""
    height, width = image.shape[:2]
    centre, moved = np.array([(width - 1) / 2, (height - 1) / 2]), np.array(matrix, float)
    moved[:, 2] += centre - moved[:, :2] @ centre
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(
        image, moved, (width, height), flags=flags, borderMode=cv2.BORDER_CONSTANT, borderValue=OUTSIDE
    )
