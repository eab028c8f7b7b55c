"""The report's section with training images: samples of each class, and an augmented batch."""

from collections.abc import Mapping

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
    if pixels is not None:
        blocks.append(class_samples(prepared, pixels))
    sheets = {title: run.folder / AUGMENTED for title, run in runs.items() if (run.folder / AUGMENTED).is_file()}
    caption = "the start of its first training batch, augmented, with the largest target of each image"
    blocks += [Image(sheet_uri(file), f"{title}: {caption}") for title, file in list(sheets.items())[:2]]
    if pixels is None:
        blocks.insert(0, Text([no_pictures(bool(runs))]))
    if not sheets:
        blocks.append(Text(["No augmented batch: `make train` draws it for the members that it trains."]))
    return Section("samples", "Images", "cache, members/<member>/<run>/augmented.png · make train", blocks)


def class_samples(prepared: Prepared, pixels: Pixels) -> Sheet:
    """Rows of each class, evenly spaced in the index; of a regression, rows evenly spaced by value.

    pixels: (N, H, W, 3) uint8 of the training rows in index order.
    """
    train, competition, note = (
        prepared.part("train"),
        prepared.competition,
        "As the network reads them, before augmentation.",
    )
    ids, labels, names = train["id"].to_numpy(str), train["label"].to_numpy(int), competition.classes
    targets = competition.targets.of(labels)
    if competition.targets.kind == "regression":
        by_value = np.argsort(targets, kind="stable")
        chosen = by_value[np.linspace(0, len(ids) - 1, min(PICTURES, len(ids))).astype(int)].tolist()
        title, texts = "Samples from the smallest to the largest value", [f"{targets[row]:.5g}" for row in chosen]
    else:
        class_rows = competition.targets.class_rows(labels, len(names))
        present = np.flatnonzero(class_rows.any(0))[:MOST_CLASSES]
        each = int(np.clip(PICTURES // max(len(present), 1), 1, PER_CLASS))
        chosen = []
        for n in present:
            rows = np.flatnonzero(class_rows[:, n])
            chosen += rows[np.linspace(0, len(rows) - 1, min(each, len(rows))).astype(int)].tolist()
        chosen = list(dict.fromkeys(chosen))  # a row with several labels is shown once
        title, texts = "Samples of each class", [competition.label_text(labels[row]) for row in chosen]
        note += f" The first {MOST_CLASSES} of {len(names)} classes." if len(names) > MOST_CLASSES else ""
    pictures = zip(pixels[np.array(chosen, int)], texts, chosen, strict=True)
    return Sheet([Tile(*data_uri(image, SMALL_SIZE), [text, ids[row]]) for image, text, row in pictures], note, title)
