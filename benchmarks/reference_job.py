"""The reference job: goldfold against the public-notebook way and against plain PyTorch with timm, in one run.

    python -m benchmarks.reference_job --source photos.zip --torch PYTHON    # without source: generated images

600 photos of 10 classes, 3 folds x 1 epoch x 2 MobileNets (V2, widths 1.0 and 0.5) at 128 pixels in batches of 64, two
views (the image and its mirror image), the mean of both members. Each implementation is one process from its start to its
result, one after the other:

goldfold    the main job as `make download train predict` runs it: indexing and search for duplicates, records, training,
            predictions with manifests, blend with honest score
notebook    benchmarks.notebook_way: a new model, compiled anew, for each member and fold; records decoded in every epoch
torch       benchmarks/reference_torch.py in float32, and with autocast to bfloat16; the faster one is the reference

--torch names the Python of an environment with torch and timm (`pip install torch timm`), because this project's own
environment has neither. Without it the torch rows are left out, and the last line says so.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.photos import ROOT, Setup, _generated, fold_of, labelled_photos, write
from pipelines.terminal.verbs import CHAINS

CLASSES, ROWS, ALPHAS = 10, 60, (1.0, 0.5)
SETUP = Setup("", CLASSES * ROWS, 128, "MobileNetV2", 1.0, epochs=1, folds=3, batch=64, predict_batch=64)
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
STAGES = ("download", "prepare", "resolve", "tune", "train", "predict", "blend")


def choose_photos(source: str, folder: Path) -> list[tuple[str, int]]:
    """Write ROWS photos of each of the first CLASSES classes that have as many; (file, label) of each."""
    by_label: dict[str, list[bytes]] = {}
    generated = ((str(label), data) for label, data in _generated(SETUP.images, SETUP.size))
    for label, data in labelled_photos(source) if source else generated:
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


def finished(command: list[str], environment: dict[str, str]) -> tuple[dict[str, Any], list[tuple[float, str]]]:
    """({wall, cpu}, lines of stdout with their times) of a process from its start to its end."""
    before, started, lines = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), []
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        lines.append((time.perf_counter() - started, line.rstrip()))
    if process.wait():
        raise SystemExit("\n".join([*(line for _, line in lines), f"{command[1:3]} failed with {process.returncode}"]))
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu}, lines


def run_goldfold(photos: Path, folder: Path) -> dict[str, Any]:
    (folder / "params.yaml").write_text(PARAMS.replace("SOURCE", str(photos)))
    folders = ["--params", folder / "params.yaml", "--work", folder / "work", "--submissions", folder / "submissions"]
    arguments = [
        str(word) for stage in STAGES for word in ("+", stage, *(["--alone"] if stage in CHAINS else []), *folders)
    ][1:]
    timing, lines = finished([sys.executable, "-m", "pipelines", *arguments], {"TF_CPP_MIN_LOG_LEVEL": "3"})
    ends = {
        stage: next((when for when, line in reversed(lines) if line.startswith(f"{stage}")), 0.0) for stage in STAGES
    }
    manifests = [json.loads(path.read_text()) for path in folder.glob("work/*/members/*/*/fold*/**/manifest.json")]
    folds = [manifest["result"] for manifest in manifests]
    timing["seconds"] = {f"until the last line of {stage}": when for stage, when in ends.items() if when}
    timing["seconds"]["in fold models"] = sum(each["seconds"] for each in folds if "held_out" in each)
    timing["seconds"]["in predictions"] = sum(each["seconds"] for each in folds if "held_out" not in each)
    return timing


def run_torch(python: str, photos: Path, chosen: list[tuple[str, int]], bfloat16: bool) -> dict[str, Any]:
    files, labels = zip(*chosen, strict=True)
    fold = fold_of(np.array(labels), SETUP.folds).tolist()
    setup = {"folder": str(photos), "files": files, "labels": labels, "fold": fold, "bfloat16": bfloat16}
    setup |= {"size": SETUP.size, "batch": SETUP.batch, "epochs": SETUP.epochs, "folds": SETUP.folds}
    setup["models"] = ["mobilenetv2_100", "mobilenetv2_050"]
    timing, lines = finished([python, str(ROOT / "benchmarks" / "reference_torch.py"), json.dumps(setup)], {})
    return {**json.loads(lines[-1][1]), **timing}


def run_notebook(source: Path, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    write(replace(SETUP, source=str(source)), folder)
    command = [sys.executable, "-m", "benchmarks.reference_job", "--child", str(folder)]
    timing, lines = finished(command, {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"})
    return {**timing, "accuracy": json.loads(lines[-1][1])}


def report(name: str, timing: dict[str, Any]) -> None:
    parts = "; ".join(f"{part} {seconds:.1f}" for part, seconds in timing.get("seconds", {}).items())
    print(f"{name:14} {timing['wall']:7.1f} s, {timing['cpu']:7.1f} s of processor time  {parts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help='a zip or a folder of photos; "" = generated images')
    parser.add_argument("--torch", default="", help="the Python of an environment with torch and timm")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    if "--child" in sys.argv:
        from benchmarks.notebook_way import notebook

        print(json.dumps(notebook(SETUP, Path(sys.argv[-1]), ALPHAS, flipped=True)[0]))
        return
    options = parser.parse_args()
    timings: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="benchmark") as temporary:
        folder = Path(temporary)
        photos = folder / "photos"
        chosen = choose_photos(options.source, photos)
        for bfloat16 in (False, True) if options.torch else ():
            name = f"torch {'bfloat16' if bfloat16 else 'float32'}"
            timings[name] = run_torch(options.torch, photos, chosen, bfloat16)
            report(name, timings[name])
        timings["goldfold"] = run_goldfold(photos, folder)
        report("goldfold", timings["goldfold"])
        timings["notebook"] = run_notebook(photos, folder / "records")
        report("notebook", timings["notebook"])
    goldfold = timings.pop("goldfold")
    ratios = {name: tuple(timing[key] / goldfold[key] for key in ("wall", "cpu")) for name, timing in timings.items()}
    compared = "; ".join(f"{name} {wall:.2f} ({cpu:.2f} in processor time)" for name, (wall, cpu) in ratios.items())
    missing = "" if options.torch else "; torch was not measured: --torch PYTHON was not given"
    print(
        f"RESULT: the reference job takes, as a multiple of goldfold's time: {compared}{missing}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
