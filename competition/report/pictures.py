"""Training images for the report, from the cache of decoded images: nothing is decoded for a few pictures on a page."""

import base64
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from competition.images.cache import Pixels, cached_images
from competition.prepare.decoding import Fit
from competition.prepare.prepared import Prepared

MAX_SIZE = 224  # pixels per side of a stored picture; shown at 112, and in full when it is opened
SMALL_SIZE = 112  # of a picture among many
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
