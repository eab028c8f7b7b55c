"""Decode and encode images with Pillow, the only decoder of the project.

Who changes the pixels that `decode` returns raises a number in training/versions.py.
"""

import io
from collections.abc import Sequence
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, features

Fit = Literal["crop", "squash"]

# Pillow supports forty formats, some through external programs; only these are tried.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", *(["AVIF"] if features.check("avif") else []))
# Of their files.
SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"}
FORMAT_NAMES = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
LARGEST = 150_000_000  # pixels that are read, because the header of a small file may claim any size
Image.MAX_IMAGE_PIXELS = None  # no limit of Pillow's own, which warns from 89 megapixels on
ORIENTATION = 0x0112  # EXIF tag, 1 to 8
# A PNG without any of these bytes has no EXIF orientation.
PNG_EXIF = (b"eXIf", b"exif", b"XML:com.adobe.xmp")


class BadImage(ValueError):
    """The bytes are not a complete image. The message gives the reason and names no file."""


def decode(data: bytes, size: int, fit: Fit) -> np.ndarray:
    """Return the first frame as (size, size, 3) uint8 RGB, rotated upright by its EXIF orientation.

    Grey (16 bits are scaled to 8, not clipped), palette and CMYK images become RGB; transparent pixels are blended with white.
    fit: "crop" keeps the central square, "squash" resizes and changes the aspect ratio.
    Raises BadImage, also for more than LARGEST pixels.
    """
    return np.array(resized(data, (size,), fit)[0])


def resized(data: bytes, sizes: Sequence[int], fit: Fit) -> list[Image.Image]:
    """Return one square RGB image per size, as `decode` does; the bytes are decoded once, for the largest size.

    Raises BadImage.
    """
    # JPEG decoders scale by 1/2, 1/4 or 1/8 at almost no cost; decode at twice the size or more, then filter.
    image = _upright_rgb(open_image(data), 2 * max(sizes))
    if fit == "crop":
        return [ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR) for size in sizes]
    return [image.resize((size, size), Image.Resampling.BILINEAR) for size in sizes]


def encode(image: Image.Image | np.ndarray, kind: Literal["jpeg", "png"], **options: int) -> bytes:
    """Return the encoded image.

    image: of Pillow, or (H, W), (H, W, 3) or (H, W, 4) uint8 pixels.
    options: Pillow's of this format: quality (1 to 100) of JPEG, compress_level of PNG.
    """
    image, out = Image.fromarray(image) if isinstance(image, np.ndarray) else image, io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


BLANK = encode(Image.new("RGB", (32, 32), (128, 128, 128)), "png")  # the substitute for an unreadable test image


def size_of(data: bytes) -> tuple[int, int]:
    """Return the upright (width, height) in pixels from the header. Raises BadImage."""
    image = open_image(data)
    # Pillow decodes a PNG to look for EXIF data behind its pixels.
    may_be_turned = image.format != "PNG" or any(name in data for name in PNG_EXIF)
    is_on_its_side = may_be_turned and _orientation(image) >= 5
    return (image.height, image.width) if is_on_its_side else (image.width, image.height)


def normalized(data: bytes) -> bytes:
    """Return an equal image that all decoders read alike: RGB or grey, JPEG or PNG, upright.

    Most images are returned unchanged; the others (EXIF orientation, alpha, palette, CMYK, 16-bit grey, GIF, BMP, WEBP, TIFF,
    AVIF) become lossless PNG. Other programs that read the record files use TensorFlow's decoders, which ignore EXIF and return
    another shape for GIF and WEBP.

    Raises BadImage; not for damaged pixels of an image that is returned unchanged: `decode` finds them.
    """
    image = open_image(data)
    common = image.format in ("JPEG", "MPO", "PNG") and image.mode in ("RGB", "L")
    if common and _orientation(image) == 1 and not image.has_transparency_data:
        return data
    return encode(_upright_rgb(image), "png", compress_level=1)


def open_image(data: bytes, most_pixels: int = LARGEST) -> Image.Image:
    """Read the header; nothing is decoded. Raises BadImage, also for more than `most_pixels`."""
    if not data:
        raise BadImage("the file is empty")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception:
        is_markup = data.lstrip()[:1] == b"<"
        kind = "a web page or XML, not an image" if is_markup else f"no {FORMAT_NAMES} image"
        raise BadImage(f"it is {kind} ({len(data):,} bytes)") from None
    if image.width * image.height > most_pixels:
        raise BadImage(f"{image.width} x {image.height} pixels are more than the {most_pixels:,} that are read")
    return image


def _orientation(image: Image.Image) -> int:
    if image.format == "TIFF":  # Pillow turns it itself
        return 1
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF data in a valid image
        return 1
    return orientation if orientation in range(1, 9) else 1


def _upright_rgb(image: Image.Image, draft: int = 0) -> Image.Image:
    """Decode an image of `open_image`, as RGB.  draft: pixels a side that a JPEG may be reduced to; 0 = full size.

    Raises BadImage.
    """
    try:
        if draft:
            image.draft(None, (draft, draft))
        if _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
        image.load()
        if image.mode in ("I", "F"):  # their range is unknown
            raise ValueError("its pixels are 32-bit or signed numbers; expected 8 or 16 bits without a sign")
        if image.mode.startswith("I;16"):  # grey; Pillow's own conversion would clip at 255
            grey, transparent = np.asarray(image), image.info.get("transparency")
            image = Image.fromarray((grey / 257).round().astype(np.uint8))
            if transparent is not None:
                image.putalpha(Image.fromarray(grey != transparent).convert("L"))
        if image.has_transparency_data:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, (255, 255, 255, 255))
            image = Image.alpha_composite(white, image)
        return image if image.mode == "RGB" else image.convert("RGB")
    except Exception as error:  # damaged bytes may cause any exception in a decoder
        text = " ".join(str(error).split()) or type(error).__name__
        raise BadImage(f"it cannot be decoded: {text}") from None
