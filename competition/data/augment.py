"""Random changes of a training batch, on the host: many of these operations have no TPU kernel.

All are batch operations with stateless random numbers: the same (batch, seed) gives the same images anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import tensorflow as tf


@dataclass(frozen=True)
class Augmentation:
    flip: str  # none | horizontal | both
    shift: float  # share of the side
    zoom: float  # share
    rotate: float  # degrees
    brightness: float  # share of the range
    contrast: float  # change of the factor
    saturation: float  # change of the factor


def augment(images: tf.Tensor, seed: tf.Tensor, how: Augmentation) -> tf.Tensor:
    """images: (B, H, W, 3) uint8; seed: (2,) int32. Returns the same shape and dtype."""
    draws = iter(tf.unstack(tf.random.experimental.stateless_split(seed, 8)))

    def uniform(limit: float) -> tf.Tensor:
        return tf.random.stateless_uniform((images.shape[0],), next(draws), -limit, limit)

    warped = _warp(images, uniform, how)
    if not (how.brightness or how.contrast or how.saturation):
        return warped
    pixels = tf.cast(warped, tf.float32)
    pixels += 255 * uniform(how.brightness)[:, None, None, None]
    mean = tf.reduce_mean(pixels, axis=(1, 2, 3), keepdims=True)
    pixels = mean + (pixels - mean) * (1 + uniform(how.contrast)[:, None, None, None])
    grey = tf.reduce_mean(pixels, axis=3, keepdims=True)
    pixels = grey + (pixels - grey) * (1 + uniform(how.saturation)[:, None, None, None])
    return tf.saturate_cast(tf.round(pixels), tf.uint8)


def _warp(images: tf.Tensor, uniform: Callable[[float], tf.Tensor], how: Augmentation) -> tf.Tensor:
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
