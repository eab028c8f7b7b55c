"""Decoding and resizing of image bytes in a TensorFlow graph, with the arithmetic of Pillow.

The graph gives the pixels of `competition.prepare.decoding.decode`: the same JPEG library, accurate integer DCT, the same
reduced decoding of large JPEGs, and Pillow's bilinear filter in its fixed-point arithmetic (Pillow, src/libImaging/Resample.c).
What TensorFlow's decoders read differently is refused: `image_problem` lists it, `images.normalized` converts it.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial

import numpy as np
import tensorflow as tf
from PIL import Image

from competition.prepare.decoding import LARGEST, Fit

HEAD = 131_072  # bytes that are searched for Exif data and PNG chunks
PLACES = 26  # bytes of a PNG until its number of bits and its kind of colour
# Exif data with an entry of the tag 0x0112, of one 16-bit number from 2 to 8, in either order of bytes; \C is any byte.
ROTATED = r"Exif\x00\x00(MM\C*\x01\x12\x00\x03\x00\x00\x00\x01\x00[\x02-\x08]|II\C*\x12\x01\x03\x00\x01\x00\x00\x00[\x02-\x08]\x00)"
FIXED_POINT = 2.0**22  # Pillow's PRECISION_BITS = 32 - 8 - 2
REDUCTIONS = (1, 2, 4, 8)  # a JPEG can be decoded at 1/n of its size


def decode_batch(data: tf.Tensor, sizes: Sequence[int], fit: Fit) -> list[tf.Tensor]:
    """Decode encoded images once per size.  data: (B,) string.  Returns (B, S, S, 3) uint8 for each S of `sizes`.

    An image that is refused is an InvalidArgumentError of the whole batch.
    """

    def decode_one(data: tf.Tensor) -> tuple[tf.Tensor, ...]:
        problem = image_problem(data)
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
            data = tf.identity(data)
        is_jpeg = tf.equal(tf.strings.substr(data, 0, 2), b"\xff\xd8")
        resized = []
        for size in sizes:
            pixels = tf.cond(is_jpeg, partial(_reduced_jpeg, data, size), lambda: tf.io.decode_png(data, channels=3))
            resized.append(resize(tf.ensure_shape(pixels, (None, None, 3)), size, fit))
        return tuple(resized)

    specs = tuple(tf.TensorSpec((size, size, 3), tf.uint8) for size in sizes)
    return list(tf.map_fn(decode_one, data, fn_output_signature=specs))


def resize(images: tf.Tensor, size: int, fit: Fit) -> tf.Tensor:
    """(..., H, W, 3) uint8 -> (..., size, size, 3) uint8: Pillow's Image.resize (squash) or ImageOps.fit (crop), bilinear.

    H and W need not be static.
    """
    height, width = tf.shape(images)[-3], tf.shape(images)[-2]
    sides = tf.cast(tf.stack([height, width]), tf.float64)
    extent = tf.reduce_min(sides) * tf.ones(2, tf.float64) if fit == "crop" else sides
    starts = (sides - extent) * 0.5
    across = _filter(width, starts[1], extent[1], size)
    down = _filter(height, starts[0], extent[0], size)
    values = tf.cast(images, tf.float64)
    if resizes_tall_images_down_first():
        is_tall = (height > size) & (height - size > 2 * (width - size))
        values = tf.cond(
            is_tall, lambda: _resized(values, down, across, False), lambda: _resized(values, down, across, True)
        )
    else:
        values = _resized(values, down, across, True)
    return tf.ensure_shape(tf.cast(values, tf.uint8), [*images.shape[:-3], size, size, 3])


@cache
def resizes_tall_images_down_first() -> bool:
    """Return True if the installed Pillow filters the columns of a tall image first, as version 13 does.

    It rounds between the two passes, so their order changes some values by one.
    """
    tall = np.random.default_rng(0).integers(0, 256, (300, 64, 3)).astype(np.uint8)
    expected = np.asarray(Image.fromarray(tall).resize((32, 32), Image.Resampling.BILINEAR))
    with tf.init_scope():  # computed now, also where a graph is being built
        down, across = (_filter(side, 0.0, float(side), 32) for side in tall.shape[:2])
        return bool(np.array_equal(_resized(tf.constant(tall, tf.float64), down, across, False), expected))


def _resized(values: tf.Tensor, down: tf.Tensor, across: tf.Tensor, across_first: bool) -> tf.Tensor:
    """(..., H, W, 3) float64 -> (..., S, S, 3) float64 whole numbers.  down: (S, H).  across: (S, W)."""
    steps = [("...hwc,ow->...hoc", across), ("...hwc,oh->...owc", down)]
    for equation, weights in steps if across_first else reversed(steps):
        values = tf.einsum(equation, values, weights)
        values = tf.clip_by_value(tf.floor((values + FIXED_POINT / 2) / FIXED_POINT), 0.0, 255.0)
    return values


def _filter(length: tf.Tensor, start: tf.Tensor, extent: tf.Tensor, size: int) -> tf.Tensor:
    """(size, length) float64 whole numbers: the weight of each input pixel in each output pixel, times FIXED_POINT.

    start, extent: position and length of the part of the input that is resized, pixels.
    """
    step = tf.cast(extent, tf.float64) / size
    support = tf.maximum(step, 1.0)  # pixels on each side of the centre; more than one when the image shrinks
    centres = (start + (tf.range(size, dtype=tf.float64) + 0.5) * step)[:, None]
    positions = tf.range(tf.cast(length, tf.float64), dtype=tf.float64)[None, :]
    first = tf.maximum(tf.floor(centres - support + 0.5), 0.0)
    last = tf.floor(centres + support + 0.5)
    weights = tf.maximum(1.0 - tf.abs((positions - centres + 0.5) / support), 0.0)
    weights = tf.where((positions >= first) & (positions < last), weights, 0.0)
    return tf.floor(weights / tf.reduce_sum(weights, 1, keepdims=True) * FIXED_POINT + 0.5)


def _reduced_jpeg(data: tf.Tensor, size: int) -> tf.Tensor:
    """(H, W, 3) uint8: a JPEG at the largest reduction that leaves twice the size or more on both sides, as Pillow's draft()."""
    ratio = tf.reduce_min(tf.io.extract_jpeg_shape(data)[:2]) // (2 * size)
    branch = tf.reduce_sum(tf.cast(ratio >= tf.constant(REDUCTIONS[1:]), tf.int32))
    decode_jpeg = partial(tf.io.decode_jpeg, data, channels=3, dct_method="INTEGER_ACCURATE")
    return tf.switch_case(branch, [partial(decode_jpeg, ratio=ratio) for ratio in REDUCTIONS])


def image_problem(data: tf.Tensor) -> tf.Tensor:
    """() string -> () string: "" or why this graph would not read the image as Pillow does."""
    # Longer than any image, so that it has the places that are read below.
    head = tf.strings.join([tf.strings.substr(data, 0, HEAD), b"\0" * PLACES])

    def jpeg_problem() -> tf.Tensor:
        height, width, channels = tf.unstack(tf.cast(tf.io.extract_jpeg_shape(data), tf.int64))
        problems = {
            f"more than {LARGEST:,} pixels": height * width > LARGEST,
            "a CMYK JPEG; convert it to RGB": channels == 4,
            "a JPEG rotated by its Exif orientation; save it upright": _holds(head, ROTATED),
        }
        return _first_problem(problems)

    def png_problem() -> tf.Tensor:
        sides = tf.io.decode_raw(tf.strings.substr(head, 16, 8), tf.int32, little_endian=False)
        depth, kind = tf.strings.substr(head, 24, 1), tf.strings.substr(head, 25, 1)
        before_pixels = tf.strings.split(head, "IDAT")[0]
        is_coloured = (kind != b"\0") & (kind != b"\2") | _holds(before_pixels, "tRNS")
        problems = {
            f"more than {LARGEST:,} pixels": tf.reduce_prod(tf.cast(sides, tf.int64)) > LARGEST,
            "a PNG without 8 bits per value; convert it to 8-bit RGB": depth != b"\x08",
            "a PNG with a palette or transparency; convert it to RGB": is_coloured,
            "a PNG with Exif data; save it upright without them": _holds(before_pixels, "eXIf"),
        }
        return _first_problem(problems)

    readers = {b"\xff\xd8\xff": jpeg_problem, b"\x89PNG\r\n\x1a\n": png_problem}
    return tf.case(
        [(tf.strings.substr(head, 0, len(start)) == start, reader) for start, reader in readers.items()],
        default=lambda: tf.constant("expected a JPEG or PNG; convert other formats to PNG"),
    )


def _first_problem(problems: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The first problem that the image has; "" without one.  problems: text -> () bool."""
    text = tf.constant("")
    for name, has_problem in reversed(list(problems.items())):
        text = tf.where(has_problem, name, text)
    return text


def _holds(data: tf.Tensor, pattern: str) -> tf.Tensor:
    """() bool: whether the pattern, of RE2, occurs in the bytes."""
    return tf.strings.regex_full_match(data, rf"\C*{pattern}\C*")
