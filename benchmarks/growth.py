"""Processor time of index, duplicates, TTA policy and blend search at 16,000 and at 200,000 rows.

    python -m benchmarks.growth [--rows 16000 200000] [--classes 20]

Prints seconds for each, and how much more time per row the larger case takes: 1.0 is linear growth. The images are small,
so that the figure is not that of the decoder. The photos of the duplicate search have random hashes and one copy in 50.
"""

import argparse
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from competition.config.params_file import load_params
from competition.ensemble.blend import fit_blend
from competition.ensemble.metrics import metric_named
from competition.ensemble.predictions import ViewPredictions
from competition.ensemble.settings import chain_settings
from competition.ensemble.tta_policy import ViewCache, fit_policy
from competition.prepare import index
from competition.prepare.adapter_types import Row
from competition.prepare.duplicates import duplicate_pairs, merged

ROOT = Path(__file__).resolve().parents[1]
VIEWS = ("identity", "a", "b", "c")
MEMBERS = 4
# Which measurements are part of a stage; the search for near duplicates also runs with a wider limit, for comparison.
STAGES: dict[str, Callable[[str], bool]] = {
    "index, duplicates and groups": lambda name: name.startswith(("index", "duplicates, near_bits 6", "groups")),
    "near duplicates alone": lambda name: name.startswith("duplicates, near_bits 6"),
    "policy": lambda name: name.startswith("policy"),
    "blend": lambda name: name.startswith("blend"),
}


def rows_of(count: int) -> Iterator[Row]:
    random = np.random.default_rng(0)
    for n in range(count):
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(buffer, "BMP")
        yield Row(f"r{n:06}", 0, "train", "shard", n, buffer.getvalue())


def hashed_rows(count: int) -> tuple[pd.DataFrame, np.ndarray]:
    """An index with random perceptual hashes, of which one in 50 is a near copy of another, and thumbnails."""
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, count, dtype=np.uint64)
    copies = random.permutation(count)[: count // 50]
    hashes[copies] = hashes[(copies + 1) % count] ^ np.uint64(0b1011)
    texts, ids = [f"{value:016x}" for value in hashes], [f"{n}" for n in range(count)]
    return pd.DataFrame({"problem": "", "sha256": ids, "phash": texts}), np.zeros((count, 16, 16, 3), np.uint8)


def predictions(count: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(labels (N,), probabilities (N, V, C)) with an accuracy of about 0.8."""
    labels = np.random.default_rng(0).permutation(np.arange(count) % classes)
    logits = np.random.default_rng([1, seed]).standard_normal((count, len(VIEWS), classes), np.float32)
    logits[np.arange(count), :, labels] += 3
    probs = np.exp(logits - logits.max(2, keepdims=True))
    return labels, probs / probs.sum(2, keepdims=True)


def cpu_seconds(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def seconds_at(count: int, classes: int) -> dict[str, float]:
    params, metric = load_params(ROOT / "params.yaml"), metric_named("macro_f1")
    settings, near = chain_settings(params, "macro_f1"), params.prepare
    images = list(rows_of(count))
    seconds = {"index": cpu_seconds(lambda: index.build(images, 1))}
    table, thumbs = hashed_rows(count)
    for bits in (near.near_bits, 10):
        pairs: list[pd.DataFrame] = []
        seconds[f"duplicates, near_bits {bits}"] = cpu_seconds(
            lambda bits=bits, pairs=pairs: pairs.append(
                duplicate_pairs(table, thumbs, bits=bits, pixels=near.near_pixels)
            )
        )
        assert len(pairs[0]) >= count // 50 * 0.9
    seconds["groups"] = cpu_seconds(lambda: merged(np.arange(count), *pairs[0][["a", "b"]].to_numpy().T))
    ids, everything = np.array([f"r{n:06}" for n in range(count)]), np.arange(count)
    labels, probs = predictions(count, classes, 0)
    views = ViewPredictions(ids, VIEWS, probs.astype(np.float16))
    cache = ViewCache(views, labels)
    seconds["policy"] = cpu_seconds(lambda: fit_policy(cache, everything, metric, settings.policy))
    members = {f"m{n}": predictions(count, classes, n)[1][:, 0] for n in range(MEMBERS)}
    for method in settings.blend.methods:
        seconds[f"blend, {method}"] = cpu_seconds(
            lambda m=method: fit_blend(m, members, members.__getitem__, labels, metric, settings.blend)
        )
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs=2, default=[16_000, 200_000])
    parser.add_argument("--classes", type=int, default=20)
    arguments = parser.parse_args()
    few, many = arguments.rows
    at_few, at_many = (seconds_at(count, arguments.classes) for count in (few, many))
    print(f"{'processor seconds':28} {few:>9,} {many:>9,}   per row, {many:,} rows / {few:,}")
    for name, seconds in at_many.items():
        print(f"{name:28} {at_few[name]:9.3f} {seconds:9.3f}   {seconds / many / (at_few[name] / few):.2f}")
    growth = {}
    for stage, is_part in STAGES.items():
        seconds_few, seconds_many = (
            sum(seconds for name, seconds in at.items() if is_part(name)) for at in (at_few, at_many)
        )
        growth[stage] = (
            f"{stage} {seconds_few:.1f} and {seconds_many:.1f} s, {seconds_many / many / (seconds_few / few):.2f}"
        )
    print(
        f"RESULT: processor time at {few:,} and {many:,} rows and its growth per row (1 is linear): {'; '.join(growth.values())}; "
        f"load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
