"""RandAugment (Cubuk et al. 2020): two random operations per image, of one common strength.

Operations and ranges are those of the paper's table. Images are processed one at a time, which is slow on few cores.
"""

from collections.abc import Callable

import tensorflow as tf

OPERATIONS = 2
# (image (H, W, 3) float32 of 0..255, sign -1 or 1, strength 0..1) -> image
Operation = Callable[[tf.Tensor, tf.Tensor, float], tf.Tensor]


def rand_augment(images: tf.Tensor, seed: tf.Tensor, magnitude: int) -> tf.Tensor:
    """Apply OPERATIONS random operations to each image. Returns (B, H, W, 3) uint8.

    images: (B, H, W, 3) uint8.  seed: (2,) int32.  magnitude: 1 to 10.
    """
    batch, strength = images.shape[0], magnitude / 10
    seeds = tf.random.experimental.stateless_split(seed, 2)
    choices = tf.random.stateless_uniform((batch, OPERATIONS), seeds[0], 0, len(ALL), dtype=tf.int32)
    signs = tf.sign(tf.random.stateless_uniform((batch, OPERATIONS), seeds[1], -1.0, 1.0))

    def augment_image(arguments: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        image, choice, sign = arguments
        pixels = tf.cast(image, tf.float32)
        for n in range(OPERATIONS):
            branches = [lambda p=pixels, f=f, s=sign[n]: f(p, s, strength) for f in ALL]
            pixels = tf.clip_by_value(tf.ensure_shape(tf.switch_case(choice[n], branches), image.shape), 0, 255)
        return tf.cast(tf.round(pixels), tf.uint8)

    return tf.map_fn(
        augment_image, (images, choices, signs), fn_output_signature=tf.TensorSpec(images.shape[1:], tf.uint8)
    )


def _affine(pixels: tf.Tensor, a: tuple[tf.Tensor | float, ...]) -> tf.Tensor:
    """Output pixel (x, y) is input pixel (a0 x + a1 y + a2, a3 x + a4 y + a5), from the centre; grey outside the image."""
    height, width = pixels.shape[:2]
    y, x = (height - 1) / 2, (width - 1) / 2
    row = [a[0], a[1], x + a[2] - a[0] * x - a[1] * y, a[3], a[4], y + a[5] - a[3] * x - a[4] * y, 0.0, 0.0]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels[None],
        transforms=tf.stack([tf.cast(value, tf.float32) for value in row])[None],
        output_shape=(height, width),
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
        fill_value=127.0,
    )[0]


def _rotate(p: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    angle = sign * strength * 0.52  # 30 degrees
    return _affine(p, (tf.cos(angle), -tf.sin(angle), 0.0, tf.sin(angle), tf.cos(angle), 0.0))


def _blend(p: tf.Tensor, reference: tf.Tensor | float, sign: tf.Tensor, strength: float) -> tf.Tensor:
    """Scale the difference from a reference image by 0.1 to 1.9."""
    return reference + (p - reference) * (1 + sign * strength * 0.9)


def _grey(p: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(p * tf.constant([0.299, 0.587, 0.114]), axis=-1, keepdims=True)


def _equalize(p: tf.Tensor, *_: object) -> tf.Tensor:
    """Equalise the histogram of every channel."""
    levels = tf.cast(p, tf.int32)
    counts = tf.stack(
        [tf.math.bincount(levels[..., c], minlength=256, maxlength=256, dtype=tf.float32) for c in range(3)]
    )
    cumulative = tf.cumsum(counts, axis=1)
    total = cumulative[:, -1:]
    low = tf.reduce_min(tf.where(counts > 0, cumulative, total), axis=1, keepdims=True)
    table = tf.where(
        total > low, (cumulative - low) / tf.maximum(total - low, 1) * 255, tf.range(256, dtype=tf.float32)[None]
    )
    return tf.stack([tf.gather(table[c], levels[..., c]) for c in range(3)], axis=-1)


def _posterize(p: tf.Tensor, sign: tf.Tensor, strength: float) -> tf.Tensor:
    step = float(2 ** round(4 * strength))
    return tf.floor(p / step) * step


def _autocontrast(p: tf.Tensor, *_: object) -> tf.Tensor:
    low, high = tf.reduce_min(p, axis=(0, 1), keepdims=True), tf.reduce_max(p, axis=(0, 1), keepdims=True)
    return tf.where(high > low, (p - low) * 255 / tf.maximum(high - low, 1), p)


ALL: tuple[Operation, ...] = (
    lambda p, *_: p,
    _autocontrast,
    _equalize,
    _rotate,
    _posterize,
    lambda p, _, strength: tf.where(p < 256 * (1 - strength), p, 255 - p),  # solarize
    lambda p, sign, strength: _blend(p, _grey(p), sign, strength),  # colour
    lambda p, sign, strength: _blend(p, tf.reduce_mean(_grey(p)), sign, strength),  # contrast
    lambda p, sign, strength: _blend(p, 0.0, sign, strength),  # brightness
    lambda p, sign, strength: _affine(p, (1.0, sign * strength * 0.3, 0.0, 0.0, 1.0, 0.0)),  # shear x
    lambda p, sign, strength: _affine(p, (1.0, 0.0, 0.0, sign * strength * 0.3, 1.0, 0.0)),  # shear y
    lambda p, sign, strength: _affine(p, (1.0, 0.0, sign * strength * 0.3 * p.shape[1], 0.0, 1.0, 0.0)),  # translate x
    lambda p, sign, strength: _affine(p, (1.0, 0.0, 0.0, 0.0, 1.0, sign * strength * 0.3 * p.shape[0])),  # translate y
)
