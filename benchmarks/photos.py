"""What the training benchmarks learn from: photos of a zip or a folder, or drawn ones, as record files; and a member for them.

A zip or folder holds train.csv (id,label) beside train/<id>.jpg, or one folder of JPEGs per class.
"""

import argparse
import csv
import io
import tempfile
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
from competition.data import records
from competition.data.cache import CacheBudget, decode_images
from competition.data.records import Record
from competition.training.trainer import Images

ROOT = Path(__file__).resolve().parents[1]
SHARDS = 8


@dataclass(frozen=True)
class Setup:
    """One benchmark's sizes."""

    source: str  # "" = drawn
    images: int  # 0 = as many as the source has, 2,000 drawn ones
    size: int
    architecture: str
    alpha: float
    epochs: int
    folds: int
    batch: int
    predict_batch: int


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", default="", help='a zip or a folder of photos; "" = drawn images')
    parser.add_argument("--images", type=int, default=0, help="0 = all of the source, or 2,000 drawn ones")
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
    """Record files and labels.csv in `folder`; photos are repeated, under new ids, where more are wanted than there are."""
    found = list(_photos(setup.source)) if setup.source else []
    wanted = setup.images or len(found) or 2_000
    names = sorted({label for label, _ in found})
    photos = ((names.index(label), data) for label, data in cycle(found))
    chosen = islice(photos, wanted) if found else _drawn(wanted, setup.size)
    rows = [(f"i{n:06}", label, data) for n, (label, data) in enumerate(chosen)]
    order = np.random.default_rng(0).permutation(wanted)
    for shard in range(SHARDS):
        some = [rows[n] for n in order[shard::SHARDS]]
        records.write_shard(f"{folder}/{shard:02}-{len(some)}.tfrec", (Record(*row) for row in some))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows((name, label) for name, label, _ in rows)


def load(setup: Setup, folder: Path, ram: int) -> tuple[Images, int]:
    """(images, classes) from what write() left, decoded into a cache in `folder`. ram: bytes held in memory."""
    with (folder / "labels.csv").open(newline="") as file:
        ids, told = zip(*csv.reader(file), strict=True)
    labels, files = np.array(told, int), shards(folder)
    budget = CacheBudget(folder / "cache", ram, 10**12)
    readable = np.ones(len(ids), bool)
    pixels = decode_images(files, np.array(ids), ~readable, setup.size, "squash", budget, "benchmark", lambda *_: None)
    return Images(np.array(ids), pixels, labels, fold_of(labels, setup.folds), readable), int(labels.max()) + 1


def shards(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tfrec")))


def fold_of(labels: np.ndarray, folds: int) -> np.ndarray:
    """Every class dealt out over the folds."""
    found = np.zeros(len(labels), int)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        found[own] = (np.arange(len(own)) + label) % folds
    return found


def member_of(setup: Setup) -> Member:
    """From random weights, in float32, with nothing but left-right flips."""
    params = load_params(ROOT / "params.yaml")
    still = dict.fromkeys(("shift", "zoom", "rotate", "brightness", "contrast", "saturation"), 0.0)
    train = replace(
        params.train, **still, flip="horizontal", epochs=setup.epochs, batch=setup.batch, precision="float32"
    )
    start = replace(params.members["mobilenet"], architecture=setup.architecture, alpha=setup.alpha)
    return replace(start, image_size=setup.size, train=train)


def told(setup: Setup, images: int) -> str:
    of = Path(setup.source).name or "drawn images"
    return (
        f"{setup.folds} folds x {setup.epochs} epochs of {setup.architecture} (alpha {setup.alpha:g}) "
        f"at {setup.size} px on {images:,} images ({of})"
    )


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="benchmark")


def _photos(source: str) -> Iterator[tuple[str, bytes]]:
    """(label, JPEG), once each."""
    folder: Any = zipfile.Path(source) if zipfile.is_zipfile(source) else Path(source)
    table = folder / "train.csv"
    if table.exists():
        for row in csv.DictReader(io.StringIO(table.read_text())):
            yield row["label"], (folder / "train" / f"{row['id']}.jpg").read_bytes()
    else:
        for label in sorted((place for place in folder.iterdir() if place.is_dir()), key=lambda place: place.name):
            for file in sorted(label.iterdir(), key=lambda file: file.name):
                if file.name.lower().endswith((".jpg", ".jpeg")):
                    yield label.name, file.read_bytes()


def _drawn(count: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Smooth random pictures with a tint for each of ten classes."""
    random = np.random.default_rng(0)
    tints = random.integers(0, 100, (10, 3))
    for n in range(count):
        small = random.integers(0, 156, (8, 8, 3)) + tints[n % 10]
        out = io.BytesIO()
        Image.fromarray(small.astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC).save(out, "JPEG")
        yield n % 10, out.getvalue()
