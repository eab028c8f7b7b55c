"""Photos of a zip or a folder, or generated images, for the other benchmarks.

A zip or folder holds train.csv (id,label) beside train/<id>.jpg, or one folder of JPEGs per class.
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]


def fold_of(labels: np.ndarray, folds: int) -> np.ndarray:
    """(N,) fold of each row, stratified by class."""
    fold = np.zeros(len(labels), int)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        fold[rows] = (np.arange(len(rows)) + label) % folds
    return fold


def labelled_photos(source: str) -> Iterator[tuple[str, bytes]]:
    """(label, JPEG) of every photo."""
    folder: Any = zipfile.Path(source) if zipfile.is_zipfile(source) else Path(source)
    table = folder / "train.csv"
    if table.exists():
        for row in csv.DictReader(io.StringIO(table.read_text())):
            yield row["label"], (folder / "train" / f"{row['id']}.jpg").read_bytes()
    else:
        for label in sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.name):
            for file in sorted(label.iterdir(), key=lambda file: file.name):
                if file.name.lower().endswith((".jpg", ".jpeg")):
                    yield label.name, file.read_bytes()


def generated_photos(count: int, size: int) -> Iterator[tuple[str, bytes]]:
    """(label, JPEG) of smooth random images with one tint for each of ten classes."""
    random = np.random.default_rng(0)
    tints = random.integers(0, 100, (10, 3))
    for n in range(count):
        small = random.integers(0, 156, (8, 8, 3)) + tints[n % 10]
        buffer = io.BytesIO()
        Image.fromarray(small.astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC).save(buffer, "JPEG")
        yield str(n % 10), buffer.getvalue()
