"""The reference job: goldfold against plain PyTorch with timm, in one run.

    python -m benchmarks.reference_job --source photos.zip --torch PYTHON    # without source: generated images

600 photos of 10 classes, 3 folds x 1 epoch x 2 MobileNets (V2, widths 1.0 and 0.5) at 128 pixels in batches of 64, two
views (the image and its mirror image), the mean of both members. Each implementation is one process from its start to its
result, one after the other:

goldfold    the main job as `make download train predict` runs it: indexing and search for duplicates, records, training,
            predictions with manifests, blend with honest score
torch       benchmarks/reference_torch.py in float32, and with autocast to bfloat16; the faster one is the reference

--torch names the Python of an environment with torch and timm (`pip install torch timm`), because this project's own
environment has neither. Without it only goldfold is measured, and the last line says so.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.photos import ROOT, fold_of, generated_photos, labelled_photos

CLASSES, ROWS = 10, 60
FOLDS, SIZE, BATCH = 3, 128, 64
PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: reference, adapter: folder, source: SOURCE}}
prepare: {{folds: 3}}
train: {{epochs: 1, batch: 64, learning_rate: 1.0e-3, label_smoothing: 0.0, flip: horizontal, shift: 0.0, zoom: 0.0,
  rotate: 0.0, brightness: 0.0, contrast: 0.0, precision: float32}}
members:
  wide: {{architecture: MobileNetV2, image_size: 128, alpha: 1.0, weights: none}}
  narrow: {{architecture: MobileNetV2, image_size: 128, alpha: 0.5, weights: none}}
predict: {{batch: 64, views: [identity, flip_lr]}}
blend: {{methods: [equal]}}
"""


def choose_photos(source: str, folder: Path) -> list[tuple[str, int]]:
    """Write ROWS photos of each of the first CLASSES classes that have as many; (file, label) of each."""
    by_label: dict[str, list[bytes]] = {}
    for label, data in labelled_photos(source) if source else generated_photos(CLASSES * ROWS, SIZE):
        by_label.setdefault(label, []).append(data)
    labels = list(islice((label for label in sorted(by_label) if len(by_label[label]) >= ROWS), CLASSES))
    chosen = []
    for number, label in enumerate(labels):
        (folder / label).mkdir(parents=True)
        for n, data in enumerate(by_label[label][:ROWS]):
            (folder / label / f"{n:03}.jpg").write_bytes(data)
            chosen.append((f"{label}/{n:03}.jpg", number))
    if len(chosen) != CLASSES * ROWS:
        raise SystemExit(f"{source}: {len(labels)} classes with {ROWS} photos were found, expected {CLASSES}")
    return chosen


def finished(command: list[str], **environment: str) -> dict[str, float]:
    """{wall, cpu} seconds of a process from its start to its end."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"{process.stdout}\n{process.stderr}\n{command[1:3]} failed with {process.returncode}")
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def run_goldfold(photos: Path, folder: Path) -> dict[str, float]:
    (folder / "params.yaml").write_text(PARAMS.replace("SOURCE", str(photos)))
    folders = ["--params", folder / "params.yaml", "--work", folder / "work", "--submissions", folder / "submissions"]
    chains = ["download", *folders, "+", "train", *folders, "+", "predict", *folders]
    return finished([sys.executable, "-m", "pipelines", *map(str, chains)], TF_CPP_MIN_LOG_LEVEL="3")


def run_torch(python: str, photos: Path, chosen: list[tuple[str, int]], bfloat16: bool) -> dict[str, float]:
    files, labels = zip(*chosen, strict=True)
    fold = fold_of(np.array(labels), FOLDS).tolist()
    setup = {"folder": str(photos), "files": files, "labels": labels, "fold": fold, "bfloat16": bfloat16}
    setup |= {"size": SIZE, "batch": BATCH, "folds": FOLDS}
    return finished([python, str(ROOT / "benchmarks" / "reference_torch.py"), json.dumps(setup)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help='a zip or a folder of photos; "" = generated images')
    parser.add_argument("--torch", default="", help="the Python of an environment with torch and timm")
    options = parser.parse_args()
    timings: dict[str, dict[str, float]] = {}
    with TemporaryDirectory(prefix="benchmark") as folder:
        photos = Path(folder) / "photos"
        chosen = choose_photos(options.source, photos)
        for name in ("torch float32", "torch bfloat16") if options.torch else ():
            timings[name] = run_torch(options.torch, photos, chosen, name == "torch bfloat16")
        goldfold = run_goldfold(photos, Path(folder))
    for name, timing in {**timings, "goldfold": goldfold}.items():
        print(f"{name:14} {timing['wall']:7.1f} s, {timing['cpu']:7.1f} s of processor time", flush=True)
    ratios = [
        f"{name} {timing['wall'] / goldfold['wall']:.2f} ({timing['cpu'] / goldfold['cpu']:.2f} in processor time)"
        for name, timing in timings.items()
    ]
    compared = "; ".join(ratios) or "torch was not measured, because --torch PYTHON was not given"
    print(
        f"RESULT: the reference job takes, as a multiple of goldfold's time: {compared}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
