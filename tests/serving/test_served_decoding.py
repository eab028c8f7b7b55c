"""The graph reads an image as Pillow does, or refuses it."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from data_fixtures import encode_image
from PIL import Image

from competition.prepare.decoding import decode
from competition.serving.decoding import decode_batch

AWKWARD = Path(__file__).resolve().parents[3] / "shared" / "data" / "awkward_images"
SIDES = ((8, 8), (16, 16), (37, 211), (211, 37), (300, 400), (700, 90))  # height, width: shrunk, enlarged, wide, tall


def encoded(pixels: np.ndarray, kind: str, mode: str | None = None, **options: object) -> bytes:
    """mode: of Pillow; None is that of the pixels."""
    return encode_image(Image.fromarray(pixels).convert(mode or Image.fromarray(pixels).mode), kind, **options)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3)).astype(np.uint8)


@cache
def reader(sizes=(16,), fit="squash"):
    signature = [tf.TensorSpec((None,), tf.string)]
    return tf.function(lambda data: decode_batch(data, sizes, fit), autograph=False, input_signature=signature)


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_the_pixels_of_jpeg_and_png_are_those_of_pillow(fit) -> None:
    images = [encoded(noise(*sides), kind) for sides in SIDES for kind in ("JPEG", "PNG")]
    images += [encoded(noise(*sides)[..., 0], kind) for sides in SIDES[2:4] for kind in ("JPEG", "PNG")]  # grey
    images.append(encoded(noise(300, 400), "JPEG", progressive=True, quality=40))
    for size, pixels in zip((16, 48), reader((16, 48), fit)(images), strict=True):
        np.testing.assert_array_equal(pixels.numpy(), np.stack([decode(image, size, fit) for image in images]))


ROTATED = Image.Exif()
ROTATED[0x0112] = 6
SMALL = encoded(noise(9, 12), "PNG")
REFUSED = {
    "rotated by its Exif orientation": encoded(noise(9, 12), "JPEG", exif=ROTATED),
    "more than 150,000,000 pixels": SMALL[:16] + (60_000).to_bytes(4, "big") * 2 + SMALL[24:],  # in its header
    "CMYK": encoded(noise(9, 12), "JPEG", "CMYK"),
    "8 bits per value": encoded(np.full((9, 12), 40_000, np.uint16), "PNG"),
    "palette or transparency": encoded(np.full((9, 12, 4), 200, np.uint8), "PNG"),
    "transparency; convert": encoded(noise(9, 12), "PNG", transparency=(1, 2, 3)),
    "expected a JPEG or PNG": encoded(noise(9, 12), "WEBP"),
    "convert other formats": b"",
    "JPEG data": encoded(noise(90, 120), "JPEG")[:900],  # truncated
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_tensorflow_reads_differently_is_refused_with_its_reason(reason) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
        reader()([SMALL, REFUSED[reason]])


@pytest.mark.skipif(not AWKWARD.is_dir(), reason="the folder of awkward real images is not on this machine")
def test_awkward_real_files_give_pillows_pixels_or_an_error() -> None:
    results = []
    for file in sorted(AWKWARD.glob("*/*")):
        try:
            pixels = reader()([file.read_bytes()])[0].numpy()[0]
        except tf.errors.InvalidArgumentError:
            results.append("refused")
        else:
            np.testing.assert_array_equal(pixels, decode(file.read_bytes(), 16, "squash"), err_msg=file.name)
            results.append("equal")
    assert results.count("equal") == 14 and results.count("refused") == 13
