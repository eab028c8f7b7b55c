"""Random changes of a training batch, on the host: many of these operations have no TPU kernel.

All are stateless random operations: the same (batch, seed) gives the same images anywhere. Order: one affine map, RandAugment,
colour, erasing, then the mixing of pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import tensorflow as tf

from competition.data.rand_augment import rand_augment

Draw = Callable[[float], tf.Tensor]  # limit -> (B,) uniform in [-limit, limit)


@dataclass(frozen=True)
class Augmentation:
    flip: str  # none | horizontal | both
    shift: float  # share of the side
    zoom: float  # share
    rotate: float  # degrees
    brightness: float  # share of the range
    contrast: float  # change of the factor
    saturation: float  # change of the factor
    rand_augment: int  # magnitude of two random operations; 0 = off
    erase: float  # probability that a rectangle is blanked
    mixup: float  # alpha of Beta(alpha, alpha); 0 = off
    cutmix: float  # likewise; where both are on, every batch takes one of the two


def augment(images: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor, how: Augmentation) -> tuple[tf.Tensor, tf.Tensor]:
    """images: (B, H, W, 3) uint8; targets: (B, C) float32; seed: (2,) int32. Returns the same shapes and dtypes."""
    seeds = iter(tf.unstack(tf.random.experimental.stateless_split(seed, 20)))

    def uniform(limit: float) -> tf.Tensor:
        return tf.random.stateless_uniform((images.shape[0],), next(seeds), -limit, limit)

    images = _warp(images, uniform, how)
    if how.rand_augment:
        images = rand_augment(images, next(seeds), how.rand_augment)
    if how.brightness or how.contrast or how.saturation:
        images = _colour(images, uniform, how)
    if how.erase:
        images = _erase(images, uniform, how.erase)
    if how.mixup or how.cutmix:
        images, targets = _mix(images, targets, next(seeds), next(seeds), how)
    return images, targets


def _warp(images: tf.Tensor, uniform: Draw, how: Augmentation) -> tf.Tensor:
    """Flip, zoom, rotate and shift as one affine map with one interpolation; the edge is mirrored."""
    batch, height, width = images.shape[:3]
    one = tf.ones((batch,))
    across = tf.where(uniform(1.0) > 0, one, -one) if how.flip in ("horizontal", "both") else one
    down = tf.where(uniform(1.0) > 0, one, -one) if how.flip == "both" else one
    if not (how.shift or how.zoom or how.rotate):
        images = tf.where(across[:, None, None, None] > 0, images, images[:, :, ::-1])
        return tf.where(down[:, None, None, None] > 0, images, images[:, ::-1])
    angle, scale = uniform(how.rotate) * pi / 180, 1 + uniform(how.zoom)
    shift_x, shift_y = uniform(how.shift) * width, uniform(how.shift) * height
    # Output (x, y) is read from input (a0 x + a1 y + a2, b0 x + b1 y + b2), about the centre of the image.
    a0, a1 = across * scale * tf.cos(angle), -across * scale * tf.sin(angle)
    b0, b1 = down * scale * tf.sin(angle), down * scale * tf.cos(angle)
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    a2 = middle_x + shift_x - a0 * middle_x - a1 * middle_y
    b2 = middle_y + shift_y - b0 * middle_x - b1 * middle_y
    zero = tf.zeros((batch,))
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([a0, a1, a2, b0, b1, b2, zero, zero], axis=1),
        output_shape=(height, width),
        interpolation="BILINEAR",
        fill_mode="REFLECT",
        fill_value=0.0,
    )


def _colour(images: tf.Tensor, uniform: Draw, how: Augmentation) -> tf.Tensor:
    pixels = tf.cast(images, tf.float32)
    pixels += 255 * uniform(how.brightness)[:, None, None, None]
    mean = tf.reduce_mean(pixels, axis=(1, 2, 3), keepdims=True)
    pixels = mean + (pixels - mean) * (1 + uniform(how.contrast)[:, None, None, None])
    grey = tf.reduce_mean(pixels, axis=3, keepdims=True)
    pixels = grey + (pixels - grey) * (1 + uniform(how.saturation)[:, None, None, None])
    return tf.saturate_cast(tf.round(pixels), tf.uint8)


def _erase(images: tf.Tensor, uniform: Draw, probability: float) -> tf.Tensor:
    """Random erasing (Zhong et al. 2020): a grey rectangle of a fiftieth to a third of the area."""
    erased = (uniform(0.5) + 0.5) < probability
    area, stretch = 0.02 + 0.31 * (uniform(0.5) + 0.5), tf.exp(uniform(1.0))
    inside = _box(images, tf.sqrt(area * stretch), tf.sqrt(area / stretch), uniform(0.5) + 0.5, uniform(0.5) + 0.5)
    return tf.where((inside & erased[:, None, None])[..., None], tf.constant(127, tf.uint8), images)


def _mix(
    images: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor, which: tf.Tensor, how: Augmentation
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mixup (Zhang et al. 2018) or CutMix (Yun et al. 2019) of every image with its neighbour in the shuffled batch."""
    batch = images.shape[0]
    either = tf.random.stateless_uniform((), which) < 0.5 if how.mixup and how.cutmix else tf.constant(bool(how.mixup))
    draws = tf.random.experimental.stateless_split(seed, 4)
    alpha = tf.where(either, how.mixup or 1.0, how.cutmix or 1.0)
    first, second = (tf.random.stateless_gamma((batch,), draws[n], alpha) for n in (0, 1))
    share = first / tf.maximum(first + second, 1e-12)  # Beta(alpha, alpha): how much of the image itself stays
    other, other_targets = tf.roll(images, 1, axis=0), tf.roll(targets, 1, axis=0)

    blend = share[:, None, None, None]
    mixed = tf.saturate_cast(
        tf.round(tf.cast(images, tf.float32) * blend + tf.cast(other, tf.float32) * (1 - blend)), tf.uint8
    )
    side = tf.sqrt(1 - share)
    middle_y, middle_x = (tf.random.stateless_uniform((batch,), draws[n]) for n in (2, 3))
    inside = _box(images, side, side, middle_y, middle_x)
    cut = tf.where(inside[..., None], other, images)
    kept = 1 - tf.reduce_mean(tf.cast(inside, tf.float32), axis=(1, 2))  # what the edge cut off is counted as kept

    share = tf.where(either, share, kept)[:, None]
    return tf.where(either, mixed, cut), share * targets + (1 - share) * other_targets


def _box(images: tf.Tensor, tall: tf.Tensor, wide: tf.Tensor, middle_y: tf.Tensor, middle_x: tf.Tensor) -> tf.Tensor:
    """(B, H, W) bool: inside a rectangle per image. All sizes and places are shares of the side."""
    height, width = images.shape[1:3]
    y = (tf.range(height, dtype=tf.float32) + 0.5) / height
    x = (tf.range(width, dtype=tf.float32) + 0.5) / width
    rows = tf.abs(y[None] - middle_y[:, None]) < tall[:, None] / 2
    columns = tf.abs(x[None] - middle_x[:, None]) < wide[:, None] / 2
    return rows[:, :, None] & columns[:, None, :]
