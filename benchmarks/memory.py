"""Peak memory of training: with one fold and all, with few images and many, decoded images on disk.

    python -m benchmarks.memory --source photos.zip           # photos are repeated up to the required number

Prints the largest resident memory (ru_maxrss) of one process for each case.
"""

import argparse
import os
import resource
import subprocess
import sys
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.photos import ROOT, fold_of, generated_photos, labelled_photos
from competition.config.params import Member
from competition.config.params_file import load_params
from competition.config.plugins import NO_PLUGINS
from competition.ensemble.metrics import METRICS
from competition.input_pipeline.decoded_cache import CacheBudget, RecordedImages, decode_images
from competition.input_pipeline.labelled_images import Images
from competition.prepare import record_files
from competition.prepare.record_files import Record

FOLDS, SIZE, BATCH, SHARDS = 3, 64, 64, 8
ARCHITECTURE, ALPHA = "MobileNetV2", 0.35
FEW, MANY = 2_000, 8_000  # images


def write(source: str, count: int, folder: Path) -> None:
    """Write record files and labels.npy to `folder`."""
    photos = list(labelled_photos(source) if source else generated_photos(count, SIZE))
    names = sorted({label for label, _ in photos})
    rows = [(f"i{n:06}", names.index(label), data) for n, (label, data) in enumerate(islice(cycle(photos), count))]
    order = np.random.default_rng(0).permutation(count)
    for shard in range(SHARDS):
        records = [Record(*rows[n]) for n in order[shard::SHARDS]]
        record_files.write_shard(f"{folder}/{shard:02}-{len(records)}.tfrec", records)
    np.save(folder / "labels.npy", [label for _, label, _ in rows])


def load(folder: Path) -> Images:
    """What write() has written, decoded into a cache on the disk."""
    labels = np.load(folder / "labels.npy")
    ids, readable = np.array([f"i{n:06}" for n in range(len(labels))]), np.ones(len(labels), bool)
    recorded = RecordedImages(sorted(map(str, folder.glob("*.tfrec"))), ids, ~readable, "benchmark")
    budget = CacheBudget(folder / "cache", 0, 10**12)
    pixels = decode_images(recorded, SIZE, "squash", budget, lambda *_: None)
    return Images(ids, pixels, labels, fold_of(labels, FOLDS), readable)


def small_member() -> Member:
    """Randomly initialised, in float32, with left-right flips as the only augmentation, for one epoch."""
    params = load_params(ROOT / "params.yaml")
    train = replace(params.train, flip="horizontal", epochs=1, batch=BATCH, precision="float32")
    train = replace(train, shift=0.0, zoom=0.0, rotate=0.0, brightness=0.0, contrast=0.0, saturation=0.0)
    return replace(params.members["small"], architecture=ARCHITECTURE, alpha=ALPHA, image_size=SIZE, train=train)


def peak(folder: Path, train_folds: int) -> float:
    """Largest resident memory in megabytes."""
    from competition.training.device import open_device
    from competition.training.engines import engine_of
    from competition.training.fold_rows import FoldRows
    from competition.training.network_trainer import NetworkTrainer

    member, device = small_member(), open_device(load_params(ROOT / "params.yaml").device)
    images = load(folder)
    assert images.labels is not None
    rows = FoldRows(member, images, int(images.labels.max()) + 1)
    engine = engine_of(member, rows.classes, BATCH, device, NO_PLUGINS)
    trainer = NetworkTrainer(rows, METRICS["accuracy"], engine, device)
    for k in range(train_folds):
        trainer.train_to_end(k, member.train)
        trainer.held_out(k)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help='a zip or a folder of photos; "" = generated images')
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "FOLDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(peak(Path(options.child[0]), int(options.child[1])))
        return
    peaks: dict[tuple[int, int], float] = {}
    for images in (FEW, MANY):
        with TemporaryDirectory(prefix="benchmark") as folder:
            write(options.source, images, Path(folder))
            for folds in (1, FOLDS):
                command = [sys.executable, "-m", "benchmarks.memory", "--child", folder, str(folds)]
                environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
                output = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
                peaks[images, folds] = float(output.splitlines()[-1])
                print(f"{images:6,} images, folds {folds}: {peaks[images, folds]:,.0f} MB at the peak", flush=True)
    source = Path(options.source).name or "generated images"
    print(
        f"RESULT: peak memory of {FOLDS} folds x 1 epochs of {ARCHITECTURE} (alpha {ALPHA:g}) at {SIZE} px on {FEW:,} images "
        f"({source}): {peaks[FEW, 1]:,.0f} MB with one fold, {peaks[FEW, FOLDS]:,.0f} MB with {FOLDS}; on {MANY:,} images "
        f"{peaks[MANY, 1]:,.0f} and {peaks[MANY, FOLDS]:,.0f} MB"
    )


if __name__ == "__main__":
    main()
