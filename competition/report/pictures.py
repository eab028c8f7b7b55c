"""Training images for the report, from the cache of decoded images: nothing is decoded for a few pictures on a page."""

import base64
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from competition.data.cache import Pixels, cached_images
from competition.data.images import Fit
from competition.data.prepared import Prepared

MAX_SIZE = 112  # pixels per side of a picture on the page
PIXEL_ART = 64  # smaller images are stored without loss and enlarged without smoothing


def cached_pixels(prepared: Prepared, sizes: Iterable[int], fit: Fit, folder: Path) -> Pixels | None:
    """(N, H, W, 3) uint8 of the training rows, in index order, at the smallest of `sizes` that `folder` holds.

    None if it holds none: training keeps decoded images only where cache.disk_gigabytes allows.
    """
    ids = prepared.part("train")["id"].to_numpy(str)
    candidates = (cached_images(folder, prepared.digest, ids, size, fit) for size in sorted(set(sizes)))
    return next((pixels for pixels in candidates if pixels is not None), None)


def data_uri(pixels: np.ndarray) -> tuple[str, bool]:
    """(the picture as a data: URI, should the browser enlarge it without smoothing?).  pixels: (H, H, 3) uint8."""
    image, is_small, out = Image.fromarray(pixels), len(pixels) < PIXEL_ART, io.BytesIO()
    image.thumbnail((MAX_SIZE, MAX_SIZE), Image.Resampling.LANCZOS)
    image.save(out, "PNG" if is_small else "JPEG", quality=82, optimize=True)
    kind = "png" if is_small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}", is_small
