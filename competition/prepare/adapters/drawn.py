"""Generated miniatures of the two real competitions: their folders, file names, columns and class counts, with drawn images.

The class of a flower determines the number, shape and colour of its petals and its centre; position, size, rotation, light,
blur, leaves and background vary. Equal seeds give equal bytes.
"""

import colorsys
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import repeat
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from competition.prepare import record_shards
from competition.prepare.adapters.tables import write_csv
from competition.prepare.decoding import encode
from competition.prepare.tfrecord_format import Record

FLOWER_PARTS = {"train": 1.0, "val": 3712 / 12753, "test": 7382 / 12753}  # images for each training image
FLOWER_FILES = 16  # of each part
LEAST = {"train": 4, "val": 1, "test": 2}  # smallest number of images of a class, at any scale
PUBLIC_SHARE = 0.3  # of the test rows, as on a leaderboard
QUALITY = 88  # JPEG
Colour = tuple[int, int, int]


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
            with ThreadPoolExecutor() as pool:
                pictures = list(pool.map(_flower, (labels[n] for n in rows), repeat(sizes), seeds))
            for photos, size in zip(zip(*pictures, strict=True), sizes, strict=True):
                path = raw / f"tfrecords-jpeg-{size}x{size}" / part / f"{shard:02}-{size}x{size}-{len(rows)}.tfrec"
                record_labels = [None if part == "test" else labels[n] for n in rows]
                record_shards.write_shard(str(path), map(Record, (ids[n] for n in rows), record_labels, photos))
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
            photos = pool.map(_leaf, (names[label] for label in labels), repeat(width), seeds)
            for (row_id, _), photo in zip(table[part], photos, strict=True):
                (raw / "images" / f"{row_id}.jpg").write_bytes(photo)
    header = ("image_id", *names)
    one_hot = np.eye(len(names), dtype=int)
    write_csv(raw / "train.csv", header, ((one, *one_hot[label]) for one, label in table["Train"]))
    write_csv(raw / "test.csv", ("image_id",), ((one,) for one, _ in table["Test"]))
    even = [1 / len(names)] * len(names)
    write_csv(raw / "sample_submission.csv", header, ((one, *even) for one, _ in table["Test"]))
    _write_solution(raw, table["Test"], seed)


def _flower(label: int, sizes: Sequence[int], seed: tuple[int, ...]) -> list[bytes]:
    """JPEGs of one flower, one per size."""
    rng, size = np.random.default_rng(seed), max(sizes)
    kind = np.random.default_rng([104, label])  # the properties common to all flowers of the class
    petals, layers = int(kind.integers(4, 13)), int(kind.integers(1, 3))
    hue, saturation = kind.uniform(), kind.uniform(0.35, 1)
    slim, pointed = kind.uniform(0.18, 0.75), kind.uniform(0.5, 1.8)
    heart_hue, heart = kind.uniform(), kind.uniform(0.12, 0.4)

    background = _colour(rng.uniform(0.18, 0.45), rng.uniform(0.2, 0.7), rng.uniform(0.15, 0.55))
    image = Image.new("RGB", (size, size), background)
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(3, 9))):  # leaves, and blossoms out of focus
        far = _colour(rng.uniform(0.2, 0.4) if rng.uniform() < 0.7 else rng.uniform(), 0.6, rng.uniform(0.2, 0.7))
        _petal(draw, rng.uniform(0, size, 2), rng.uniform(0.1, 0.4) * size, (0.5, 1.0), rng.uniform(0, 7), (far, None))
    image = image.filter(ImageFilter.GaussianBlur(size * rng.uniform(0.004, 0.03)))
    draw = ImageDraw.Draw(image)

    light, tint = rng.uniform(0.65, 1), hue + rng.normal(0, 0.025)
    middle = size * rng.uniform(0.38, 0.62, 2)
    reach, turn = size * rng.uniform(0.26, 0.46), rng.uniform(0, 2 * math.pi)
    for layer in range(layers):
        length = reach * (1 - 0.3 * layer)
        shade = _colour(tint, saturation * rng.uniform(0.85, 1), light * (1 - 0.15 * layer))
        edge = _colour(tint, saturation, 0.6 * light)
        for n in range(petals):
            angle = turn + (n + 0.5 * layer) * 2 * math.pi / petals + rng.normal(0, 0.05)
            _petal(draw, middle, length * rng.uniform(0.92, 1.05), (slim, pointed), angle, (shade, edge))
    disc = reach * heart
    draw.ellipse([*(middle - disc), *(middle + disc)], fill=_colour(heart_hue, 0.8, 0.8 * light))
    if rng.uniform() < 0.3:  # a leaf in front
        _petal(
            draw, rng.uniform(0, size, 2), 0.35 * size, (0.35, 1.0), rng.uniform(0, 7), (_colour(0.3, 0.7, 0.4), None)
        )
    photo = _grained(image.filter(ImageFilter.GaussianBlur(size * rng.uniform(0, 0.006))), rng)
    photos = [photo if side == size else photo.resize((side, side)) for side in sizes]
    return [encode(one, "jpeg", quality=QUALITY) for one in photos]


def _leaf(kind: str, full_width: int, seed: tuple[int, ...]) -> bytes:
    """The JPEG of one leaf."""
    # Drawn at half the width and enlarged: a quarter of the time, without visible loss of detail.
    rng, width = np.random.default_rng(seed), full_width // 2
    size = np.array([width, round(width * 2 / 3)])
    background = _colour(rng.uniform(0.2, 0.4), rng.uniform(0.1, 0.5), rng.uniform(0.3, 0.7))
    image = Image.new("RGB", tuple(size.tolist()), background)
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        far = _colour(rng.uniform(0.2, 0.4), 0.5, rng.uniform(0.2, 0.6))
        _petal(
            draw, rng.uniform(0, 1, 2) * size, rng.uniform(0.2, 0.5) * width, (0.5, 1.0), rng.uniform(0, 7), (far, None)
        )
    image = image.filter(ImageFilter.GaussianBlur(width * 0.02))
    draw = ImageDraw.Draw(image)
    angle, length = rng.uniform(0, 2 * math.pi), width * rng.uniform(0.55, 0.75)
    along = np.array([math.cos(angle), math.sin(angle)])
    stalk = size * rng.uniform(0.42, 0.58, 2) - along * length / 2
    green = _colour(rng.uniform(0.24, 0.36), rng.uniform(0.45, 0.8), rng.uniform(0.35, 0.7))
    _petal(draw, stalk, length, (0.55, 0.9), angle, (green, _colour(0.3, 0.6, 0.3)))
    draw.line([*stalk, *(stalk + along * length)], fill=_colour(0.25, 0.4, 0.8), width=max(1, width // 150))

    across = np.array([-along[1], along[0]])
    both = kind == "multiple_diseases"
    spots = [("rust", int(rng.integers(3, 12)))] if both or kind == "rust" else []
    spots += [("scab", int(rng.integers(2, 8)))] if both or kind == "scab" else []
    spots += [("glint", int(rng.integers(0, 4)))]  # reflections: spots that do not depend on the class
    for what, count in spots:
        for _ in range(count):
            place = stalk + along * length * rng.uniform(0.2, 0.8) + across * length * rng.uniform(-0.16, 0.16)
            _spot(draw, what, place, width, rng)
    photo = _grained(image.filter(ImageFilter.GaussianBlur(width * rng.uniform(0.001, 0.005))), rng)
    return encode(photo.resize((full_width, round(full_width * 2 / 3))), "jpeg", quality=QUALITY)


def _spot(draw: ImageDraw.ImageDraw, what: str, place: np.ndarray, width: int, rng: np.random.Generator) -> None:
    if what == "rust":  # round, orange, a yellow rim
        radius = width * rng.uniform(0.008, 0.02)
        draw.ellipse([*(place - 1.5 * radius), *(place + 1.5 * radius)], fill=_colour(0.14, 0.9, 0.9))
        draw.ellipse([*(place - radius), *(place + radius)], fill=_colour(rng.uniform(0.04, 0.08), 0.95, 0.8))
    elif what == "scab":  # ragged, dark
        angles = np.sort(rng.uniform(0, 2 * math.pi, 9))
        ragged = width * rng.uniform(0.008, 0.035, 9)
        points = place + np.stack([np.cos(angles), np.sin(angles)], 1) * ragged[:, None]
        draw.polygon([tuple(point) for point in points.tolist()], fill=_colour(0.12, 0.5, rng.uniform(0.12, 0.3)))
    else:
        radius = width * rng.uniform(0.006, 0.02)
        draw.ellipse([*(place - radius), *(place + radius)], fill=_colour(0.25, 0.15, 0.9))


def _petal(
    draw: ImageDraw.ImageDraw,
    foot: np.ndarray,
    length: float,
    shape: tuple[float, float],
    angle: float,
    colours: tuple[Colour, Colour | None],
) -> None:
    """A drop shape from `foot` in direction `angle`.

    shape: width to length; sharpness of the tip, below 1 blunt, above 1 sharp.  colours: of the area, of its edge.
    """
    (slim, pointed), (fill, edge) = shape, colours
    t = np.linspace(0, 1, 16)
    half = 0.5 * slim * length * np.sin(math.pi * t**0.8) ** pointed
    x, y = np.concatenate([t * length, t[::-1] * length]), np.concatenate([half, -half[::-1]])
    turned = np.stack([x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)], 1) + foot
    draw.polygon([tuple(point) for point in turned.tolist()], fill=fill, outline=edge)


def _grained(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Sensor noise and uneven light."""
    pixels = np.asarray(image, np.float32)
    slope = np.linspace(rng.uniform(0.8, 1), rng.uniform(0.9, 1.1), image.width, dtype=np.float32)[None, :, None]
    noise = rng.standard_normal((image.height // 2 + 1, image.width // 2 + 1, 1), np.float32) * rng.uniform(1, 7)
    noise = noise.repeat(2, 0).repeat(2, 1)[: image.height, : image.width]
    return Image.fromarray((pixels * slope + noise).clip(0, 255).astype(np.uint8))


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, min(saturation, 1), min(value, 1))
    return round(255 * red), round(255 * green), round(255 * blue)


def _write_solution(raw: Path, answers: Iterable[tuple[str, int]], seed: int) -> None:
    rng = np.random.default_rng([seed, len(FLOWER_PARTS)])
    lines = ((one, label, "Public" if rng.uniform() < PUBLIC_SHARE else "Private") for one, label in answers)
    write_csv(raw / "private" / "solution.csv", ("id", "label", "usage"), lines)
