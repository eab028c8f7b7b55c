"""The report's section with training images: samples of each class, and an augmented batch."""

from collections.abc import Mapping, Sequence

import numpy as np

from competition.images.cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.page import Block, Image, Section, Sheet, Text, Tile
from competition.report.pictures import SMALL_SIZE, data_uri, no_pictures, sheet_uri
from competition.workspace.runs import Run

PICTURES, PER_CLASS, MOST_CLASSES = 60, 6, 120
AUGMENTED = "augmented.png"  # in the folder of a run, written by make train


def samples_section(prepared: Prepared, pixels: Pixels | None, runs: Mapping[str, Run]) -> Section:
    """Samples of each class and the start of a training batch, or why there are none.

    pixels: (N, H, W, 3) uint8 of the training rows in index order.  runs: by title, those of the current parameters.
    """
    blocks: list[Block] = []
    if pixels is not None and prepared.competition.targets.kind == "single":
        labels, names = prepared.part("train")["label"].to_numpy(int), prepared.competition.classes
        blocks.append(class_samples(labels, prepared.part("train")["id"].to_numpy(str), names, pixels))
    sheets = {title: run.folder / AUGMENTED for title, run in runs.items() if (run.folder / AUGMENTED).is_file()}
    caption = "the start of its first training batch, augmented, with the largest target of each image"
    blocks += [Image(sheet_uri(file), f"{title}: {caption}") for title, file in list(sheets.items())[:2]]
    if pixels is None:
        blocks.insert(0, Text([no_pictures(bool(runs))]))
    elif prepared.competition.targets.kind != "single":
        blocks.insert(0, Text(["Samples of each class are shown for single labels only."]))
    if not sheets:
        blocks.append(Text(["No augmented batch: `make train` draws it for the members that it trains."]))
    return Section("samples", "Images", "cache, members/<member>/<run>/augmented.png · make train", blocks)


def class_samples(labels: np.ndarray, ids: np.ndarray, names: Sequence[str], pixels: Pixels) -> Sheet:
    """Rows of each class, evenly spaced in the index.  labels: (N,) int."""
    present = [n for n in range(len(names)) if (labels == n).any()][:MOST_CLASSES]
    each = int(np.clip(PICTURES // max(len(present), 1), 1, PER_CLASS))
    chosen = []
    for n in present:
        rows = np.flatnonzero(labels == n)
        chosen += rows[np.linspace(0, len(rows) - 1, min(each, len(rows))).astype(int)].tolist()
    order = np.array(chosen, int)
    tiles = [
        Tile(*data_uri(image, SMALL_SIZE), [names[labels[row]], str(ids[row])])
        for row, image in zip(chosen, pixels[order], strict=True)
    ]
    cut = f" The first {MOST_CLASSES} of {len(names)} classes." if len(names) > MOST_CLASSES else ""
    return Sheet(tiles, f"As the network reads them, before augmentation.{cut}", "Samples of each class")
