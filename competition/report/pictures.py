"""Pictures: contact sheets of many small images as one PNG, training images for the report, and its section of samples.

The report takes them from the cache of decoded images, or decodes the few that a page shows: frozen features keep no decoded images.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from competition.files.image_codec import Fit
from competition.files.manifest import atomic_write
from competition.input_pipeline.decoded_cache import cached_images
from competition.input_pipeline.decoded_rows import Pixels, Stream
from competition.prepare.prepared import Prepared
from competition.report import page
from competition.report.page import Block, Section, Sheet, Text, Tile
from competition.workspace.runs import Run

MAX_SIZE = 224  # pixels per side of a stored picture; shown at 112, and in full when it is opened
SMALL_SIZE = 112  # of a picture among many
TILE = 128  # pixels of one image on a contact sheet
LINE = 14  # pixels of one line of text on it
COLUMNS = 8  # of images on it
SHEET_WIDTH = 1040  # pixels, of one on the page
SAMPLES, PER_CLASS, MOST_CLASSES = 60, 6, 120
AUGMENTED = "augmented.png"  # in the folder of a run, written by make train
PIXEL_ART = 64  # smaller images are stored without loss and enlarged without smoothing


def training_pixels(prepared: Prepared, sizes: Iterable[int], fit: Fit, folder: Path) -> Pixels | None:
    """(N, H, W, 3) uint8 of the training rows, in index order, at the best of `sizes` that `folder` holds, else decoded from the
    records at the best of `sizes` whenever they are looked at. The best is the largest up to MAX_SIZE, else the smallest.

    sizes: () = MAX_SIZE.

    None if the records are not on this machine, as in a bucket.
    """
    train = prepared.part("train")
    sizes = sorted({*sizes} or {MAX_SIZE}, key=lambda size: (size > MAX_SIZE, abs(size - MAX_SIZE)))
    ids = train["id"].to_numpy(str)
    candidates = (cached_images(folder, prepared.digest, ids, size, fit) for size in sizes)
    if (pixels := next((pixels for pixels in candidates if pixels is not None), None)) is not None:
        return pixels
    records = [] if prepared.remote_records else prepared.records("train")
    return Stream(records, ids, (train["problem"] != "").to_numpy(), sizes[0], fit) if records else None


NO_PICTURES = "No pictures: neither the records nor decoded training images are on this machine; `make prepare` writes the records."


def row_tiles(
    prepared: Prepared,
    ids: np.ndarray,
    lines: Sequence[Sequence[str]],
    pixels: Pixels | None,
    longest_side: int = SMALL_SIZE,
) -> list[Tile]:
    """The training rows of `ids` with the lines below each; without pixels, which are in index order, the lines alone."""
    pictures = [("", False)] * len(ids)
    if pixels is not None:
        training_ids = pd.Index(prepared.part("train")["id"], dtype=object)
        rows = training_ids.get_indexer(pd.Index(ids, dtype=object))
        pictures = [data_uri(image, longest_side) for image in pixels[rows]]
    return [Tile(*picture, texts) for picture, texts in zip(pictures, lines, strict=True)]


def data_uri(pixels: np.ndarray, longest_side: int = MAX_SIZE) -> tuple[str, bool]:
    """(the picture as a data: URI, should the browser enlarge it without smoothing?).

    pixels: (H, W, 3) uint8.  longest_side: pixels.
    """
    image, is_small, out = Image.fromarray(pixels), len(pixels) < PIXEL_ART, io.BytesIO()
    image.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    image.save(out, "PNG" if is_small else "JPEG", quality=82, optimize=True)
    kind = "png" if is_small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}", is_small


def sheet_uri(file: Path) -> str:
    """A contact sheet (PNG) as a JPEG data: URI of at most SHEET_WIDTH."""
    with Image.open(file) as sheet:
        width, height = sheet.size
        return data_uri(np.asarray(sheet.convert("RGB")), SHEET_WIDTH * max(width, height) // width)[0]


def contact_sheet(images: np.ndarray | Sequence[np.ndarray], captions: Sequence[str], path: Path) -> None:
    """Write a grid of images with captions to `path`; small images are enlarged without smoothing.

    images: N of (H, W, 3) uint8.  captions: N texts, lines separated by '\\n'.
    """
    lines = max((caption.count("\n") + 1 for caption in captions), default=1)
    rows = -(-len(images) // COLUMNS)
    width, height = TILE + 8, TILE + 8 + LINE * lines
    sheet = Image.new("RGB", (COLUMNS * width, max(rows, 1) * height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for n, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = n % COLUMNS * width + 4, n // COLUMNS * height + 4
        resampling = Image.Resampling.NEAREST if image.shape[0] < TILE else Image.Resampling.LANCZOS
        sheet.paste(Image.fromarray(image).resize((TILE, TILE), resampling), (x, y))
        for line, text in enumerate(caption.split("\n")):
            while font.getlength(text) > TILE and len(text) > 1:
                text = (
                    "…" + text[2:] if "/" in text else text[:-2] + "…"
                )  # of a file in a folder the end tells which one
            pen.text((x, y + TILE + 1 + LINE * line), text, fill="black", font=font)
    with atomic_write(path) as temporary:
        sheet.save(temporary, format="PNG")


def samples_section(prepared: Prepared, pixels: Pixels | None, runs: Mapping[str, Run]) -> Section:
    """Samples of each class and the start of a training batch, or why there are none.

    pixels: (N, H, W, 3) uint8 of the training rows in index order.  runs: by title, those of the current parameters.
    """
    blocks: list[Block] = [Text([NO_PICTURES]) if pixels is None else class_samples(prepared, pixels)]
    sheets = [(title, run.folder / AUGMENTED) for title, run in runs.items() if (run.folder / AUGMENTED).is_file()]
    caption = "the start of its first training batch, augmented, with the largest target of each image"
    blocks += [page.Image(sheet_uri(file), f"{title}: {caption}") for title, file in sheets[:2]]
    return Section("samples", "Images", "cache, members/<member>/<run>/augmented.png · make train", blocks)


def class_samples(prepared: Prepared, pixels: Pixels) -> Sheet:
    """Rows of each class, evenly spaced in the index; of a regression, rows evenly spaced by value.

    pixels: (N, H, W, 3) uint8 of the training rows in index order.
    """
    train, competition = prepared.part("train"), prepared.competition
    note = "As the network reads them, before augmentation."
    ids, labels, names = train["id"].to_numpy(str), train["label"].to_numpy(int), competition.classes
    targets = competition.targets.of(labels)
    if competition.targets.kind == "regression":
        by_value = np.argsort(targets, kind="stable")
        chosen = by_value[np.linspace(0, len(ids) - 1, min(SAMPLES, len(ids))).astype(int)].tolist()
        title, texts = "Samples from the smallest to the largest value", [f"{targets[row]:.5g}" for row in chosen]
    else:
        class_rows = competition.targets.class_rows(labels, len(names))
        present = np.flatnonzero(class_rows.any(0))[:MOST_CLASSES]
        each = int(np.clip(SAMPLES // max(len(present), 1), 1, PER_CLASS))
        chosen = []
        for n in present:
            rows = np.flatnonzero(class_rows[:, n])
            chosen += rows[np.linspace(0, len(rows) - 1, min(each, len(rows))).astype(int)].tolist()
        chosen = list(dict.fromkeys(chosen))  # a row with several labels is shown once
        title, texts = "Samples of each class", [competition.label_text(labels[row]) for row in chosen]
        note += f" The first {MOST_CLASSES} of {len(names)} classes." if len(names) > MOST_CLASSES else ""
    lines = [[text, ids[row]] for text, row in zip(texts, chosen, strict=True)]
    return Sheet(row_tiles(prepared, ids[chosen], lines, pixels), note, title)
