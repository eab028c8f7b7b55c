"""Pictures: contact sheets of many small images as one PNG, and training images for the report.

The report takes them from the cache of decoded images: nothing is decoded for a few pictures on a page.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from competition.ensemble.predictions import positions
from competition.files.manifest import atomic_write
from competition.images.cache import Pixels, cached_images
from competition.prepare.decoding import Fit
from competition.prepare.prepared import Prepared

MAX_SIZE = 224  # pixels per side of a stored picture; shown at 112, and in full when it is opened
SMALL_SIZE = 112  # of a picture among many
TILE = 128  # pixels of one image on a contact sheet
LINE = 14  # pixels of one line of text on it
PIXEL_ART = 64  # smaller images are stored without loss and enlarged without smoothing


def cached_pixels(prepared: Prepared, sizes: Iterable[int], fit: Fit, folder: Path) -> Pixels | None:
    """(N, H, W, 3) uint8 of the training rows, in index order, at the smallest of `sizes` that `folder` holds.

    None if it holds none: training keeps decoded images only where cache.disk_gigabytes allows.
    """
    ids = prepared.part("train")["id"].to_numpy(str)
    candidates = (cached_images(folder, prepared.digest, ids, size, fit) for size in sorted(set(sizes)))
    return next((pixels for pixels in candidates if pixels is not None), None)


def no_pictures(has_networks: bool) -> str:
    """Why `cached_pixels` has none.  has_networks: some member is trained here."""
    if not has_networks:
        return "No pictures: only training writes decoded images, and no member is trained here."
    return "No pictures: the decoded training images are not on disk; `make train` writes them (cache.disk_gigabytes)."


def row_pictures(
    prepared: Prepared, ids: np.ndarray, pixels: Pixels | None, longest_side: int = MAX_SIZE
) -> list[tuple[str, bool]]:
    """`data_uri` of the training rows of `ids`; ("", False) for each without pixels, which are in index order."""
    if pixels is None:
        return [("", False)] * len(ids)
    return [
        data_uri(image, longest_side) for image in pixels[positions(prepared.part("train")["id"].to_numpy(str), ids)]
    ]


def data_uri(pixels: np.ndarray, longest_side: int = MAX_SIZE) -> tuple[str, bool]:
    """(the picture as a data: URI, should the browser enlarge it without smoothing?).

    pixels: (H, W, 3) uint8.  longest_side: pixels.
    """
    image, is_small, out = Image.fromarray(pixels), len(pixels) < PIXEL_ART, io.BytesIO()
    image.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    image.save(out, "PNG" if is_small else "JPEG", quality=82, optimize=True)
    kind = "png" if is_small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}", is_small


def sheet_uri(file: Path, width: int = 1040) -> str:
    """A contact sheet (PNG) as a JPEG data: URI of at most this width in pixels."""
    with Image.open(file) as sheet:
        image, out = sheet.convert("RGB"), io.BytesIO()
    image.thumbnail((width, 4 * width), Image.Resampling.LANCZOS)
    image.save(out, "JPEG", quality=80, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"


def contact_sheet(
    images: np.ndarray | Sequence[np.ndarray], captions: Sequence[str], path: Path, columns: int = 8
) -> None:
    """Write a grid of images with captions to `path`; small images are enlarged without smoothing.

    images: N of (H, W, 3) uint8.  captions: N texts, lines separated by '\\n'.
    """
    lines = max((caption.count("\n") + 1 for caption in captions), default=1)
    rows = -(-len(images) // columns)
    width, height = TILE + 8, TILE + 8 + LINE * lines
    sheet = Image.new("RGB", (columns * width, max(rows, 1) * height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for n, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = n % columns * width + 4, n // columns * height + 4
        resampling = Image.Resampling.NEAREST if image.shape[0] < TILE else Image.Resampling.LANCZOS
        sheet.paste(Image.fromarray(image).resize((TILE, TILE), resampling), (x, y))
        for line, text in enumerate(caption.split("\n")):
            while font.getlength(text) > TILE and len(text) > 1:
                text = text[:-2] + "…"
            pen.text((x, y + TILE + 1 + LINE * line), text, fill="black", font=font)
    with atomic_write(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)
