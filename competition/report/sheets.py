"""Contact sheets: many small images with a line of text under each, as one PNG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from competition.files.manifest import atomic_write

TILE = 128  # pixels of one image on the sheet
LINE = 14  # pixels of one line of text


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
            pen.text((x, y + TILE + 1 + LINE * line), _shortened(text, font), fill="black", font=font)
    with atomic_write(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Cut the text to the width of a tile."""
    while font.getlength(text) > TILE and len(text) > 1:
        text = text[:-2] + "…"
    return text
