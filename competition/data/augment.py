"""Random augmentation of a training batch, on the host, because many of these operations have no TPU kernel.

All operations are stateless: the same (batch, seed) gives the same images everywhere. Order: those of `augmentations.py`
that run on the host, one affine map, RandAugment, colour, random erasing, then mixup or CutMix. The options here are
numbers of `train` that a study may tune; other augmentations are functions in `augmentations.py` or a plugins file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import tensorflow as tf

from competition.data.rand_augment import rand_augment

Draw = Callable[[float], tf.Tensor]  # limit -> (B,) float32, uniform in [-limit, limit)


@dataclass(frozen=True)
class Augmentation:
    flip: str  # none | horizontal | both
    shift: float  # fraction of the side
    zoom: float  # largest change of the scale, as a fraction
    rotate: float  # degrees
    brightness: float  # fraction of the range
    contrast: float  # change of the factor
    saturation: float  # change of the factor
    rand_augment: int  # magnitude of two random operations; 0 = off
    erase: float  # probability of random erasing
    mixup: float  # alpha of Beta(alpha, alpha); 0 = off
    cutmix: float  # alpha, as for mixup; if both are on, each batch uses one of them, drawn at random
    augment: tuple[tuple[str, float], ...] = ()  # name in AUGMENTATIONS and strength, applied before all others


def augment(
    images: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor, options: Augmentation
) -> tuple[tf.Tensor, tf.Tensor]:
    """Augment one batch. Returns (images, targets) of the same shapes and dtypes.

    images: (B, H, W, 3) uint8.  targets: (B, C) float32.  seed: (2,) int32.
    """
    seeds = iter(tf.unstack(tf.random.experimental.stateless_split(seed, 20)))

    def uniform(limit: float) -> tf.Tensor:
        return tf.random.stateless_uniform((images.shape[0],), next(seeds), -limit, limit)

    images = _warp(images, uniform, options)
    if options.rand_augment:
        images = rand_augment(images, next(seeds), options.rand_augment)
    if options.brightness or options.contrast or options.saturation:
        images = _colour(images, uniform, options)
    if options.erase:
        images = _erase(images, uniform, options.erase)
    if options.mixup or options.cutmix:
        images, targets = _mix(images, targets, next(seeds), next(seeds), options)
    return images, targets


def _warp(images: tf.Tensor, uniform: Draw, options: Augmentation) -> tf.Tensor:
    """Flip, zoom, rotate and shift in one affine map with one interpolation; the image is mirrored at its edges."""
    batch, height, width = images.shape[:3]
    ones = tf.ones((batch,))
    flip_x = tf.where(uniform(1.0) > 0, ones, -ones) if options.flip in ("horizontal", "both") else ones
    flip_y = tf.where(uniform(1.0) > 0, ones, -ones) if options.flip == "both" else ones
    if not (options.shift or options.zoom or options.rotate):
        images = tf.where(flip_x[:, None, None, None] > 0, images, images[:, :, ::-1])
        return tf.where(flip_y[:, None, None, None] > 0, images, images[:, ::-1])
    angle, scale = uniform(options.rotate) * pi / 180, 1 + uniform(options.zoom)
    shift_x, shift_y = uniform(options.shift) * width, uniform(options.shift) * height
    # Output pixel (x, y) is input pixel (a0 x + a1 y + a2, b0 x + b1 y + b2); the centre of the image is fixed.
    a0, a1 = flip_x * scale * tf.cos(angle), -flip_x * scale * tf.sin(angle)
    b0, b1 = flip_y * scale * tf.sin(angle), flip_y * scale * tf.cos(angle)
    center_x, center_y = (width - 1) / 2, (height - 1) / 2
    a2 = center_x + shift_x - a0 * center_x - a1 * center_y
    b2 = center_y + shift_y - b0 * center_x - b1 * center_y
    zero = tf.zeros((batch,))
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([a0, a1, a2, b0, b1, b2, zero, zero], axis=1),
        output_shape=(height, width),
        interpolation="BILINEAR",
        fill_mode="REFLECT",
        fill_value=0.0,
    )


def _colour(images: tf.Tensor, uniform: Draw, options: Augmentation) -> tf.Tensor:
    pixels = tf.cast(images, tf.float32)
    pixels += 255 * uniform(options.brightness)[:, None, None, None]
    mean = tf.reduce_mean(pixels, axis=(1, 2, 3), keepdims=True)
    pixels = mean + (pixels - mean) * (1 + uniform(options.contrast)[:, None, None, None])
    grey = tf.reduce_mean(pixels, axis=3, keepdims=True)
    pixels = grey + (pixels - grey) * (1 + uniform(options.saturation)[:, None, None, None])
    return tf.saturate_cast(tf.round(pixels), tf.uint8)


def _erase(images: tf.Tensor, uniform: Draw, probability: float) -> tf.Tensor:
    """Random erasing (Zhong et al. 2020): a grey rectangle of 2 to 33 % of the area."""
    is_erased = (uniform(0.5) + 0.5) < probability
    area, aspect_ratio = 0.02 + 0.31 * (uniform(0.5) + 0.5), tf.exp(uniform(1.0))
    inside = _box(
        images, tf.sqrt(area * aspect_ratio), tf.sqrt(area / aspect_ratio), uniform(0.5) + 0.5, uniform(0.5) + 0.5
    )
    return tf.where((inside & is_erased[:, None, None])[..., None], tf.constant(127, tf.uint8), images)


def _mix(
    images: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor, method_seed: tf.Tensor, options: Augmentation
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mixup (Zhang et al. 2018) or CutMix (Yun et al. 2019) of every image with its neighbour in the batch.

    method_seed: (2,) int32, draws which of the two if both are on.
    """
    batch = images.shape[0]
    is_mixup = (
        tf.random.stateless_uniform((), method_seed) < 0.5
        if options.mixup and options.cutmix
        else tf.constant(bool(options.mixup))
    )
    seeds = tf.random.experimental.stateless_split(seed, 4)
    alpha = tf.where(is_mixup, options.mixup or 1.0, options.cutmix or 1.0)
    first, second = (tf.random.stateless_gamma((batch,), seeds[n], alpha) for n in (0, 1))
    share = first / tf.maximum(first + second, 1e-12)  # Beta(alpha, alpha): weight of the image itself
    neighbours, neighbour_targets = tf.roll(images, 1, axis=0), tf.roll(targets, 1, axis=0)

    weight = share[:, None, None, None]
    mixed = tf.saturate_cast(
        tf.round(tf.cast(images, tf.float32) * weight + tf.cast(neighbours, tf.float32) * (1 - weight)), tf.uint8
    )
    side = tf.sqrt(1 - share)
    center_y, center_x = (tf.random.stateless_uniform((batch,), seeds[n]) for n in (2, 3))
    inside = _box(images, side, side, center_y, center_x)
    cut = tf.where(inside[..., None], neighbours, images)
    # Measured, because a rectangle that crosses the edge replaces less than was drawn.
    remaining = 1 - tf.reduce_mean(tf.cast(inside, tf.float32), axis=(1, 2))

    share = tf.where(is_mixup, share, remaining)[:, None]
    return tf.where(is_mixup, mixed, cut), share * targets + (1 - share) * neighbour_targets


def _box(
    images: tf.Tensor, box_height: tf.Tensor, box_width: tf.Tensor, center_y: tf.Tensor, center_x: tf.Tensor
) -> tf.Tensor:
    """One rectangle per image as a mask, (B, H, W) bool. Sizes and centres are (B,) fractions of the side."""
    height, width = images.shape[1:3]
    y = (tf.range(height, dtype=tf.float32) + 0.5) / height
    x = (tf.range(width, dtype=tf.float32) + 0.5) / width
    rows = tf.abs(y[None] - center_y[:, None]) < box_height[:, None] / 2
    columns = tf.abs(x[None] - center_x[:, None]) < box_width[:, None] / 2
    return rows[:, :, None] & columns[:, None, :]
