"""Recall on artificial series and false joins of competition.prepare.series on real photos.

    .venv/bin/python -m benchmarks.series --source PATH/flowers102_128.zip [--rows 16000]

planted    100 photos are each retaken four times (crop of 72 to 92 % of the side, rotation up to 8 degrees, brightness,
           contrast and colour by up to 15 %) and put among all the photos. Share of these 500 photos that are joined to
           another of their series. The set has real series of its own; the share of the other photos that are joined
           is an upper bound of the false alarms.
objects    60 classes of four photos, each photo retaken eight times: everything is a series.
labels     the labels permuted, so that hardly any series is within one class: share of the photos joined, all false.
digits     scikit-learn's 1,797 digits, no series, classes far apart: share joined, all false.
splits     the AUC of training against test rows over 20 random halves of 1,000 photos: largest lower end, largest AUC.
--rows     seconds for so many rows of 100 classes, random descriptors.
"""

import argparse
import time

import numpy as np
import pandas as pd
from PIL import Image, ImageEnhance

from benchmarks.photos import _photos as photos_of
from competition.prepare import decoding as images
from competition.prepare import series, shift
from competition.prepare.embedding import SIZE, describe
from competition.prepare.index import THUMB

SIDE = 128  # pixels of the artificial photos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--rows", type=int, default=16_000)
    options = parser.parse_args()
    photos, labels = read(options.source)
    rng = np.random.default_rng(0)
    print(f"{len(photos):,} photos of {labels.max() + 1} classes")
    planted(photos, labels, rng)
    objects(photos, rng)
    thumbs = thumbs_of(photos)
    print(f"labels     joined {joined(thumbs, rng.permutation(labels)).mean():.4f}")
    print(f"digits     joined {joined(*digits()).mean():.4f}")
    splits(describe(thumbs), min(1000, len(thumbs)))
    seconds(options.rows, rng)


def read(source: str) -> tuple[list[Image.Image], np.ndarray]:
    """(photos of SIDE pixels, (N,) int labels)."""
    names, photos = [], []
    for name, data in photos_of(source):
        names.append(name)
        photos.append(Image.fromarray(images.decode(data, SIDE, "squash")))
    return photos, np.unique(names, return_inverse=True)[1]


def another_photo(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    photo = photo.rotate(rng.uniform(-8, 8), Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))
    side = int(SIDE * rng.uniform(0.72, 0.92))
    x, y = rng.integers(0, SIDE - side + 1, 2)
    photo = photo.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        photo = enhancer(photo).enhance(rng.uniform(0.85, 1.15))
    return photo


def thumbs_of(photos: list[Image.Image]) -> np.ndarray:
    return np.stack([np.array(photo.resize((THUMB, THUMB), Image.Resampling.BOX)) for photo in photos])


def joined(thumbs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N,) bool: the row is proposed as part of a series."""
    rows = len(labels)
    index = pd.DataFrame({"id": np.arange(rows).astype(str), "label": labels, "part": "train", "problem": ""})
    series_members = series.find_series(index.assign(group=np.arange(rows)), describe(thumbs))
    return index["id"].isin(series_members["id"]).to_numpy()


def planted(photos: list[Image.Image], labels: np.ndarray, rng: np.random.Generator) -> None:
    chosen = rng.choice(len(photos), min(100, len(photos) // 10), replace=False)
    retakes = [another_photo(photos[n], rng) for n in chosen for _ in range(4)]
    is_joined = joined(thumbs_of([*photos, *retakes]), np.r_[labels, np.repeat(labels[chosen], 4)])
    is_planted = np.isin(np.arange(len(is_joined)), chosen) | (np.arange(len(is_joined)) >= len(photos))
    print(
        f"planted    joined {is_joined[is_planted].mean():.3f} of the planted, {is_joined[~is_planted].mean():.4f} of the other photos"
    )


def objects(photos: list[Image.Image], rng: np.random.Generator) -> None:
    classes = min(60, len(photos) // 4)
    chosen = rng.choice(len(photos), 4 * classes, replace=False)
    is_joined = joined(
        thumbs_of([another_photo(photos[n], rng) for n in chosen for _ in range(8)]), np.repeat(np.arange(classes), 32)
    )
    print(f"objects    joined {is_joined.mean():.3f} of {len(is_joined):,}")


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    large = (grey.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8).repeat(2, 1).repeat(2, 2)
    return np.repeat(large[..., None], 3, -1), labels


def splits(embedding: np.ndarray, rows: int) -> None:
    results = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        chosen, is_test = rng.choice(len(embedding), rows, replace=False), rng.random(rows) < 0.3
        index = pd.DataFrame({"id": chosen.astype(str), "part": np.where(is_test, "test", "train"), "problem": ""})
        result, _ = shift.compare(index, embedding[chosen], np.arange(rows))
        assert result is not None
        results.append((result.low, result.auc))
    low, auc = np.max(results, axis=0)
    print(f"splits     largest lower end {low:.3f}, largest AUC {auc:.3f} of 20 ({shift.ALIKE} warns)")


def seconds(rows: int, rng: np.random.Generator) -> None:
    embedding = rng.normal(size=(rows, SIZE)).astype(np.float32)
    started = time.process_time()
    series.series_pairs(embedding, rng.integers(0, 100, rows))
    print(f"{rows:,} rows of 100 classes: {time.process_time() - started:.1f} s of CPU time")


if __name__ == "__main__":
    main()
