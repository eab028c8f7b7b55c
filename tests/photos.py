"""Synthetic photos: random scenes, several photos of one scene, and the digits of scikit-learn."""

import numpy as np
from PIL import Image, ImageEnhance

SIDE = 48  # pixels


def scene(seed: int) -> Image.Image:
    """A smooth random image that differs clearly from that of every other seed."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def another_photo(image: Image.Image, seed: int) -> Image.Image:
    """Another photo of the same scene: other crop, rotation and light, more than 6 bits apart in the perceptual hash."""
    rng = np.random.default_rng(seed)
    side = int(SIDE * rng.uniform(0.8, 0.92))
    x, y = rng.integers(0, SIDE - side + 1, 2)
    photo = image.rotate(rng.uniform(-5, 5), Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))
    photo = photo.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        photo = enhancer(photo).enhance(rng.uniform(0.9, 1.1))
    return photo


def thumb(image: Image.Image) -> np.ndarray:
    """Thumbnail of shape (16, 16, 3), uint8, as in the index."""
    return np.array(image.resize((16, 16), Image.Resampling.BOX))


def digit_thumbs() -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails (1797, 16, 16, 3) uint8 and labels (1797,) of handwritten digits, which contain no series."""
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    large = (grey.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8).repeat(2, 1).repeat(2, 2)
    return np.repeat(large[..., None], 3, -1), labels
