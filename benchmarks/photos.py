"""Data and member of the training benchmarks: photos of a zip or a folder, or generated images, as record files.

A zip or folder holds train.csv (id,label) beside train/<id>.jpg, or one folder of JPEGs per class.
"""

import argparse
import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from competition.config.params import Member
from competition.config.params_file import load_params
from competition.images.decoded_cache import CacheBudget, RecordedImages, decode_images
from competition.images.labelled_images import Images
from competition.prepare import record_shards
from competition.prepare.tfrecord_format import Record

ROOT = Path(__file__).resolve().parents[1]
SHARDS = 8


@dataclass(frozen=True)
class Setup:
    """One benchmark's sizes."""

    source: str  # "" = generated
    images: int  # 0 = all of the source, or 2,000 generated ones
    size: int
    architecture: str
    alpha: float
    epochs: int
    folds: int
    batch: int
    predict_batch: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", default="", help='a zip or a folder of photos; "" = generated images')
    parser.add_argument("--images", type=int, default=0, help="0 = all of the source, or 2,000 generated ones")
    parser.add_argument("--size", type=int, default=128, help="pixels")
    parser.add_argument("--architecture", default="MobileNetV2")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--predict-batch", type=int, default=64)


def setup_of(options: argparse.Namespace) -> Setup:
    return Setup(**{name: getattr(options, name) for name in Setup.__dataclass_fields__})


def write(setup: Setup, folder: Path) -> None:
    """Write record files and labels.csv to `folder`; photos are repeated under new ids if the source has too few."""
    photos = list(labelled_photos(setup.source)) if setup.source else []
    count = setup.images or len(photos) or 2_000
    names = sorted({label for label, _ in photos})
    repeated = ((names.index(label), data) for label, data in cycle(photos))
    images = islice(repeated, count) if photos else _generated(count, setup.size)
    rows = [(f"i{n:06}", label, data) for n, (label, data) in enumerate(images)]
    order = np.random.default_rng(0).permutation(count)
    for shard in range(SHARDS):
        shard_rows = [rows[n] for n in order[shard::SHARDS]]
        record_shards.write_shard(f"{folder}/{shard:02}-{len(shard_rows)}.tfrec", (Record(*row) for row in shard_rows))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows((name, label) for name, label, _ in rows)


def load(setup: Setup, folder: Path, ram: int) -> tuple[Images, int]:
    """(images, number of classes) written by write(), decoded into a cache in `folder`.  ram: bytes kept in memory."""
    with (folder / "labels.csv").open(newline="") as file:
        ids, label_texts = zip(*csv.reader(file), strict=True)
    labels, files = np.array(label_texts, int), shards(folder)
    budget = CacheBudget(folder / "cache", ram, 10**12)
    readable = np.ones(len(ids), bool)
    recorded = RecordedImages(files, np.array(ids), ~readable, "benchmark")
    pixels = decode_images(recorded, setup.size, "squash", budget, lambda *_: None)
    return Images(np.array(ids), pixels, labels, fold_of(labels, setup.folds), readable), int(labels.max()) + 1


def shards(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tfrec")))


def fold_of(labels: np.ndarray, folds: int) -> np.ndarray:
    """(N,) fold of each row, stratified by class."""
    fold = np.zeros(len(labels), int)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        fold[rows] = (np.arange(len(rows)) + label) % folds
    return fold


def member_of(setup: Setup) -> Member:
    """Randomly initialised, in float32, with left-right flips as the only augmentation."""
    params = load_params(ROOT / "params.yaml")
    no_augmentation = dict.fromkeys(("shift", "zoom", "rotate", "brightness", "contrast", "saturation"), 0.0)
    train = replace(
        params.train, **no_augmentation, flip="horizontal", epochs=setup.epochs, batch=setup.batch, precision="float32"
    )
    member = replace(params.members["small"], architecture=setup.architecture, alpha=setup.alpha)
    return replace(member, image_size=setup.size, train=train)


def describe(setup: Setup, images: int) -> str:
    source = Path(setup.source).name or "generated images"
    return (
        f"{setup.folds} folds x {setup.epochs} epochs of {setup.architecture} (alpha {setup.alpha:g}) "
        f"at {setup.size} px on {images:,} images ({source})"
    )


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


def _generated(count: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(label, JPEG) of smooth random images with one tint for each of ten classes."""
    random = np.random.default_rng(0)
    tints = random.integers(0, 100, (10, 3))
    for n in range(count):
        small = random.integers(0, 156, (8, 8, 3)) + tints[n % 10]
        buffer = io.BytesIO()
        Image.fromarray(small.astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC).save(buffer, "JPEG")
        yield n % 10, buffer.getvalue()
