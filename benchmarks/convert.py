"""make convert against the same decoding, resizing and encoding without goldfold, interleaved on the same cores.

    .venv/bin/python -m benchmarks.convert                        4,000 generated photos of 400 x 300 pixels
    .venv/bin/python -m benchmarks.convert --source FOLDER        JPEGs below a folder

The reference is what a script would do: a process pool whose workers open, decode, resize to both sizes and encode with
Pillow, and throw the result away: no records, no files, no checksums, no reading back. Both arms take the same share of the
images in turn, several times; the median of the ratios per round is printed, with the lowest and the highest.

Measured beside other work on 2 cores (load 12), 1,600 images, 5 rounds: 0.90 (0.87 to 0.92) in running processes, 0.86 (0.79 to
0.96) with the start of the engine's processes.
"""

import argparse
import io
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from competition.convert.local import convert_shards
from competition.convert.plan import make_shards
from competition.convert.shard import Recipe, SourceImage, codecs, convert_shard

SIZES, QUALITY = (192, 224), 92


def generate(folder: Path, count: int) -> None:
    """Smooth pictures with some noise, about as large as photos of this size."""
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (300, 400, 3), np.uint8))
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        Image.blend(small.resize((400, 300), Image.Resampling.BICUBIC), noise, 0.08).save(
            folder / f"{number:05}.jpg", quality=88
        )


def plain(paths: list[str]) -> int:
    """Decode, resize and encode with Pillow alone; return the bytes of the encoded images."""
    total = 0
    for path in paths:
        image = Image.open(path).convert("RGB")
        for size in SIZES:
            out = io.BytesIO()
            image.resize((size, size), Image.Resampling.BILINEAR).save(out, "JPEG", quality=QUALITY)
            total += len(out.getvalue())
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    processes = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary:
        source = options.source or Path(temporary) / "source"
        if not options.source:
            source.mkdir()
            generate(source, options.images)
        paths = sorted(source.rglob("*.jpg"))[: options.images]
        rows = [SourceImage(str(n), n % 10, path.relative_to(source).as_posix(), "") for n, path in enumerate(paths)]
        target = Path(temporary) / "target"
        recipe = Recipe(str(source), str(target), SIZES, "jpeg", QUALITY, "squash", "error", 10**8, codecs())
        shards = make_shards("train", rows, 2 * processes, stratify=True)
        parts = [[f"{source}/{row.path}" for row in shard.rows] for shard in shards]
        reference_rates, our_rates, shard_rates = [], [], []
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(plain, [part[:2] for part in parts]))
            for _ in range(options.rounds):
                started = time.perf_counter()
                list(pool.map(plain, parts))
                reference_rates.append(len(rows) / (time.perf_counter() - started))
                started = time.perf_counter()
                list(pool.map(convert_shard, shards, [recipe] * len(shards)))
                shard_rates.append(len(rows) / (time.perf_counter() - started))
                shutil.rmtree(target)
                started = time.perf_counter()
                list(convert_shards(shards, recipe, processes))  # with the start of its processes
                our_rates.append(len(rows) / (time.perf_counter() - started))
                shutil.rmtree(target)
        reference = statistics.median(reference_rates)
        print(
            f"{len(rows):,} images to {' and '.join(map(str, SIZES))} pixels, {processes} processes, {options.rounds} rounds"
        )
        print(f"decode, resize, encode without goldfold  {reference:7.0f} images/s")
        for name, rates in (
            ("shards, running processes", shard_rates),
            ("make convert's engine, with its start", our_rates),
        ):
            ratios = [ours / theirs for ours, theirs in zip(rates, reference_rates, strict=True)]
            low, high = min(ratios), max(ratios)
            print(
                f"{name:39}  {statistics.median(rates):7.0f} images/s  ratio {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
            )


if __name__ == "__main__":
    main()
