"""Generated miniatures of the two real competitions: their folders, file names, columns and class counts, with drawn images.

Every image shows a flower. Its class determines the number, shape and colour of the petals and the centre; position, size,
rotation, light, blur, noise and background vary. Equal seeds give equal bytes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import repeat
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from competition.files.image_codec import encode
from competition.prepare import record_files
from competition.prepare.adapters.tables import write_csv
from competition.prepare.tfrecord_format import Record

FLOWER_PARTS = {"train": 1.0, "val": 3712 / 12753, "test": 7382 / 12753}  # images for each training image
FLOWER_FILES = 16  # of each part
LEAST = {"train": 4, "val": 1, "test": 2}  # smallest number of images of a class, at any scale
PUBLIC_SHARE = 0.3  # of the test rows, as on a leaderboard
LARGEST = 1024  # pixels of the side that are drawn; larger images are enlarged, without visible loss of detail
QUALITY = 88  # JPEG


def flowers(raw: Path, classes: Mapping[str, int], scale: float, sizes: Sequence[int], seed: int) -> None:
    """Write tfrecords-jpeg-SIZExSIZE/{train,val,test}/NN-SIZExSIZE-COUNT.tfrec for every size, and the tables.

    classes: name -> training images of the real competition.
    """
    for number, (part, share) in enumerate(FLOWER_PARTS.items()):
        counts = [max(LEAST[part], round(count * share * scale)) for count in classes.values()]
        in_order = np.repeat(np.arange(len(counts)), counts)
        labels = np.random.default_rng([seed, number]).permutation(in_order).tolist()
        # Ids of 9 hexadecimal digits, as the real competition's.
        ids = [blake2b(f"{seed} {part} {n}".encode(), digest_size=5).hexdigest()[:9] for n in range(len(labels))]
        for shard, rows in enumerate(np.array_split(np.arange(len(ids)), FLOWER_FILES)):
            seeds = [(seed, number, n) for n in rows.tolist()]
            squares = [(size, size) for size in sizes]
            with ThreadPoolExecutor() as pool:
                pictures = list(pool.map(_flower, (labels[n] for n in rows), repeat(squares), seeds))
            for photos, size in zip(zip(*pictures, strict=True), sizes, strict=True):
                path = raw / f"tfrecords-jpeg-{size}x{size}" / part / f"{shard:02}-{size}x{size}-{len(rows)}.tfrec"
                record_labels = [None if part == "test" else labels[n] for n in rows]
                record_files.write_shard(str(path), map(Record, (ids[n] for n in rows), record_labels, photos))
    write_csv(raw / "sample_submission.csv", ("id", "label"), ((row_id, 0) for row_id in ids))  # of the last part, test
    _write_solution(raw, zip(ids, labels, strict=True), seed)


def plants(raw: Path, classes: Mapping[str, int], scale: float, width: int, seed: int) -> None:
    """Write images/{Train,Test}_N.jpg of 3:2, train.csv with one column per class, test.csv, sample_submission.csv."""
    names, counts = [*classes], [max(LEAST["train"] + 1, round(count * scale)) for count in classes.values()]
    (raw / "images").mkdir(parents=True)
    table: dict[str, list[tuple[str, int]]] = {}
    for number, part in enumerate(("Train", "Test")):
        labels = np.random.default_rng([seed, number]).permutation(np.repeat(np.arange(len(names)), counts)).tolist()
        table[part] = [(f"{part}_{n}", label) for n, label in enumerate(labels)]
        seeds = [(seed, number, n) for n in range(len(labels))]
        with ThreadPoolExecutor() as pool:
            photos = pool.map(_flower, labels, repeat([(width, round(width * 2 / 3))]), seeds)
            for (row_id, _), (photo,) in zip(table[part], photos, strict=True):
                (raw / "images" / f"{row_id}.jpg").write_bytes(photo)
    header = ("image_id", *names)
    one_hot = np.eye(len(names), dtype=int)
    write_csv(raw / "train.csv", header, ((one, *one_hot[label]) for one, label in table["Train"]))
    write_csv(raw / "test.csv", ("image_id",), ((one,) for one, _ in table["Test"]))
    even = [1 / len(names)] * len(names)
    write_csv(raw / "sample_submission.csv", header, ((one, *even) for one, _ in table["Test"]))
    _write_solution(raw, table["Test"], seed)


def _flower(label: int, sizes: Sequence[tuple[int, int]], seed: tuple[int, ...]) -> list[bytes]:
    """JPEGs of one flower, one per size (width, height)."""
    rng, side = np.random.default_rng(seed), min(LARGEST, max(width for width, _ in sizes))
    of_class = np.random.default_rng([104, label])  # draws the properties common to all flowers of the class
    petals, hue, saturation = int(of_class.integers(4, 13)), of_class.uniform(), of_class.uniform(0.35, 1)
    slim, heart, heart_hue = of_class.uniform(0.18, 0.75), of_class.uniform(0.12, 0.4), of_class.uniform()

    background = _colour(rng.uniform(0.18, 0.45), rng.uniform(0.2, 0.7), rng.uniform(0.15, 0.55))
    image = Image.new("RGB", (side, side), background)
    for _ in range(int(rng.integers(3, 9))):  # leaves and blossoms behind it
        colour = _colour(rng.uniform(), 0.6, rng.uniform(0.2, 0.7))
        _draw_petal(image, rng.uniform(0, side, 2), rng.uniform(0.1, 0.4) * side, 0.5, rng.uniform(0, 7), colour)
    image = image.filter(ImageFilter.GaussianBlur(side * rng.uniform(0.004, 0.03)))
    light, tint, turn = rng.uniform(0.65, 1), hue + rng.normal(0, 0.025), rng.uniform(0, 7)
    middle, reach = side * rng.uniform(0.38, 0.62, 2), side * rng.uniform(0.26, 0.46)
    for n in range(petals):
        colour = _colour(tint, saturation * rng.uniform(0.85, 1), light)
        angle = turn + n * 2 * math.pi / petals
        _draw_petal(image, middle, reach * rng.uniform(0.92, 1.05), slim, angle, colour)
    disc = [*(middle - reach * heart), *(middle + reach * heart)]
    ImageDraw.Draw(image).ellipse(disc, fill=_colour(heart_hue, 0.8, 0.8 * light))
    noise = rng.normal(0, rng.uniform(1, 7), (side // 2 + 1, side // 2 + 1, 1)).repeat(2, 0).repeat(2, 1)
    photo = Image.fromarray((np.asarray(image) + noise[:side, :side]).clip(0, 255).astype(np.uint8))
    return [encode(photo.resize(size), "jpeg", quality=QUALITY) for size in sizes]


def _draw_petal(image: Image.Image, foot: np.ndarray, length: float, slim: float, angle: float, colour: str) -> None:
    """Draw a drop shape from `foot` in direction `angle`.  slim: its width to its length."""
    t = np.linspace(0, 1, 16)
    half = 0.5 * slim * length * np.sin(math.pi * t**0.8)
    x, y = np.concatenate([t * length, t[::-1] * length]), np.concatenate([half, -half[::-1]])
    turned = np.stack([x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)], 1) + foot
    ImageDraw.Draw(image).polygon([tuple(point) for point in turned.tolist()], fill=colour)


def _colour(hue: float, saturation: float, value: float) -> str:
    """The colour as Pillow reads it.  All from 0 to 1; a hue beyond goes round the circle."""
    return f"hsv({hue % 1 * 360:.1f}, {saturation:.1%}, {value:.1%})"


def _write_solution(raw: Path, answers: Iterable[tuple[str, int]], seed: int) -> None:
    rng = np.random.default_rng([seed, len(FLOWER_PARTS)])
    lines = ((one, label, "Public" if rng.uniform() < PUBLIC_SHARE else "Private") for one, label in answers)
    write_csv(raw / "private" / "solution.csv", ("id", "label", "usage"), lines)
