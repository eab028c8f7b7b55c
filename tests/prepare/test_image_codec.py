import io

import numpy as np
import pytest
from data_fixtures import encode_image, synthetic_image
from PIL import Image, ImageOps, PngImagePlugin

from competition.files import image_codec as images
from competition.prepare import index
from competition.prepare.adapter_types import Row

NO_PROBLEM = ""
# File -> (upright size, problem, whether the file is written unchanged).
UNUSUAL_FILES = {
    "real/gray_L_0.jpg": ((183, 280), NO_PROBLEM, "unchanged"),
    "real/exif_orientation_6_0.jpg": ((294, 392), NO_PROBLEM, "rewritten"),
    "made/truncated_last_bytes.jpg": ((320, 209), "truncated", None),
    "made/empty.jpg": ((0, 0), "the file is empty", None),
    "made/not_an_image.jpg": ((0, 0), "a web page", None),
    "made/cmyk.jpg": ((320, 209), NO_PROBLEM, "rewritten"),
    "made/rgba.png": ((320, 209), NO_PROBLEM, "rewritten"),
    "made/gray16.png": ((320, 209), NO_PROBLEM, "rewritten"),
    "made/palette.gif": ((320, 209), NO_PROBLEM, "rewritten"),
    "made/gif_inside.jpg": ((320, 209), NO_PROBLEM, "rewritten"),
    "made/webp_inside.jpg": ((320, 209), NO_PROBLEM, "rewritten"),
    "made/trailing_garbage.jpg": ((320, 209), NO_PROBLEM, "unchanged"),
    "made/one_by_one.jpg": ((1, 1), NO_PROBLEM, "unchanged"),
    "made/made_exif6.jpg": ((209, 320), NO_PROBLEM, "rewritten"),
}


@pytest.mark.parametrize("name", UNUSUAL_FILES)
def test_every_unusual_file_is_decoded_as_tensorflow_does_or_its_problem_is_named(real_data, name):
    import tensorflow as tf

    size, problem, written = UNUSUAL_FILES[name]
    data = (real_data / "awkward_images" / name).read_bytes()
    indexed = index.build([Row("a", 0, "train", name, 0, data)], classes=1)[0].iloc[0]
    assert (indexed["width"], indexed["height"]) == size
    assert problem in indexed["problem"] and bool(problem) == bool(indexed["problem"])
    if problem:
        with pytest.raises(images.BadImage, match=problem):
            images.decode(data, 64, "crop")
        return
    pixels = images.decode(data, 64, "squash")
    assert pixels.shape == (64, 64, 3) and pixels.dtype == np.uint8
    normalized_data = images.normalized(data)
    assert (normalized_data == data) == (written == "unchanged")
    assert np.abs(images.decode(normalized_data, 64, "squash").astype(int) - pixels).mean() < 2  # the same image
    assert tf.io.decode_jpeg(normalized_data, channels=3).shape == (*images.size_of(normalized_data)[::-1], 3)


@pytest.mark.parametrize("image_format", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_according_to_their_exif_orientation(orientation, image_format):
    upright = Image.new("RGB", (40, 20), "white")
    upright.paste("red", (0, 0, 20, 10))  # the upper left quarter
    turned = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # orientation -> the transposition that undoes it when saved
    stored = upright.transpose(Image.Transpose(turned[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[images.ORIENTATION] = orientation
    data = encode_image(stored, image_format, exif=exif)
    assert images.size_of(data) == (40, 20)
    pixels = images.decode(data, 16, "squash")
    assert pixels[2, 2].tolist() == [255, 0, 0] and pixels[2, 13].tolist() == pixels[13, 2].tolist() == [255, 255, 255]
    assert images.size_of(images.normalized(data)) == (40, 20)


def test_sixteen_bit_values_are_scaled_and_not_clipped():
    ramp = np.linspace(0, 65535, 64).round().astype(np.uint16)
    data = encode_image(Image.fromarray(np.tile(ramp, (64, 1))))
    assert np.array_equal(images.decode(data, 64, "squash")[0, :, 0], (ramp / 257).round().astype(np.uint8))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_whose_range_is_unknown_are_not_read(dtype):
    data = encode_image(Image.fromarray(np.full((8, 8), 200, dtype)), "TIFF")
    with pytest.raises(images.BadImage, match="32-bit or signed numbers; expected 8 or 16 bits"):
        images.decode(data, 8, "crop")


def test_transparent_pixels_become_white():
    palette, grey16 = Image.new("P", (8, 8), 0), Image.fromarray(np.zeros((8, 8), np.uint16))
    palette.putpalette([0, 0, 0] * 256)
    by_mode = [encode_image(Image.new("RGBA", (8, 8), (0, 0, 0, 0)).convert(mode)) for mode in ("RGBA", "LA")]
    by_value = [encode_image(image, "PNG", transparency=0) for image in (palette, grey16)]
    for data in (*by_mode, *by_value):
        assert images.decode(data, 8, "crop").min() == 255
    assert images.decode(encode_image(grey16, "PNG", transparency=1), 8, "crop").max() == 0


def test_crop_keeps_the_centre_and_squash_keeps_the_complete_image():
    wide = Image.new("RGB", (60, 20), "blue")
    wide.paste("white", (20, 0, 40, 20))
    data = encode_image(wide)
    assert images.decode(data, 20, "crop")[:, 2:-2].min() == 255
    squashed = images.decode(data, 30, "squash")
    assert squashed[15, 2].tolist() == [0, 0, 255] and squashed[15, 15].tolist() == [255, 255, 255]


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "AVIF"])
def test_a_truncated_file_of_every_format_is_a_bad_image(image_format):
    data = encode_image(synthetic_image(1, (200, 200)), image_format)
    images.decode(data, 32, "squash")
    with pytest.raises(images.BadImage):
        images.decode(data[: len(data) // 2], 32, "squash")


def test_a_small_file_with_too_many_pixels_or_of_an_unsafe_format_is_an_error_before_decoding():
    bomb = encode_image(Image.new("1", (13_000, 13_000)))
    assert len(bomb) < 100_000
    with pytest.raises(images.BadImage, match="13000 x 13000 pixels are more than"):
        images.decode(bomb, 32, "crop")
    with pytest.raises(images.BadImage):
        images.size_of(bomb)
    with pytest.raises(images.BadImage, match="no JPEG, PNG"):  # a format that needs an external program
        images.decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 8, "crop")


def png_with_orientation_behind_its_pixels(size):
    exif = Image.Exif()
    exif[images.ORIENTATION] = 6
    chunks = io.BytesIO()
    PngImagePlugin.putchunk(chunks, b"eXIf", exif.tobytes()[len(b"Exif\0\0") :])
    data, end = encode_image(Image.new("1", size)), 12  # bytes of the last chunk, IEND
    return data[:-end] + chunks.getvalue() + data[-end:]


def test_a_png_is_decoded_for_its_size_only_if_it_may_be_turned_and_never_beyond_the_limit(monkeypatch):
    plain, turned = encode_image(Image.new("1", (40, 20))), png_with_orientation_behind_its_pixels((20, 40))
    top = Image.open(io.BytesIO(turned))
    assert ImageOps.exif_transpose(top).size == (40, 20)  # as `decode` sees it
    load, decoded = PngImagePlugin.PngImageFile.load, []
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda image: (decoded.append(image), load(image))[1])
    assert images.size_of(plain) == (40, 20) and not decoded
    with pytest.raises(images.BadImage, match="20 x 40 pixels are more than the 799 that are read"):
        images.open_image(turned, 799)
    images.open_image(turned, 800)
    assert not decoded
    assert images.size_of(turned) == (40, 20) and decoded
