"""Photo-like pictures without files: random scenes, series of one scene, and the digits of scikit-learn."""

import numpy as np
from PIL import Image, ImageEnhance

SIDE = 48  # pixels


def scene(seed: int) -> Image.Image:
    """A smooth random picture, unlike that of any other seed."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def retaken(picture: Image.Image, seed: int) -> Image.Image:
    """The same scene again: other crop, rotated, other light; no perceptual hash of 6 bits calls it the same photo."""
    rng = np.random.default_rng(seed)
    side = int(SIDE * rng.uniform(0.8, 0.92))
    x, y = rng.integers(0, SIDE - side + 1, 2)
    again = picture.rotate(rng.uniform(-5, 5), Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))
    again = again.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        again = enhancer(again).enhance(rng.uniform(0.9, 1.1))
    return again


def thumb(picture: Image.Image) -> np.ndarray:
    """(16, 16, 3) uint8, as the index has it."""
    return np.array(picture.resize((16, 16), Image.Resampling.BOX))


def digit_thumbs() -> tuple[np.ndarray, np.ndarray]:
    """(1797, 16, 16, 3) uint8 and (1797,) labels: written by many hands, no series among them."""
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    large = (grey.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8).repeat(2, 1).repeat(2, 2)
    return np.repeat(large[..., None], 3, -1), labels
