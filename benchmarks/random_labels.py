"""Honest scores on random labels, for every kind of member through every stage: the true accuracy of all is chance.

    python -m benchmarks.random_labels --seeds 20

Photos of digits get random labels, so a score of a member or a blend above chance on out-of-fold rows is a leak. For each
seed the stages download, prepare, tune, train, predict and blend run in this process, with other labels; only `tune`
gets tune.trials. z is (accuracy - chance) / standard error. For each kind it prints how many seeds lie within two
standard errors of chance, how many lie above, and the mean of z, which detects a leak too small for a single seed.

An honest procedure exceeds two standard errors in one direction in 2.3 % of the seeds. The exit code is 1 if more than
one seed in twenty lies above (a leak raises scores), or if the mean of z is more than three of its own standard errors
from 0.
"""

import argparse
import importlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SIDE, CLASSES = 16, 4  # pixels of the images
MEMBERS = {
    "plain": "",
    "student": ", teacher: [plain], teacher_weight: 1.0",
    "stopped": ", train: {patience: EPOCHS}",  # never stops early, but keeps the best epoch
    "tuned": ", train: {seed: 11}",
    "linear": ", head: {kind: linear, views: [identity, shift_up]}",
    "rbf": ", head: {kind: rbf}",
    "mlp": ", head: {kind: mlp}",
    "neighbours": ", head: {kind: neighbours}",
}
PARAMS = """
extends: ROOT/params.yaml
competition: {name: random_labels, adapter: folder, source: SOURCE, metric: accuracy}
prepare: {folds: FOLDS, seed: SEED, near_bits: 0, near_pixels: 0.0}
device: {logical_devices: 1, backend: tensorflow, hang_seconds: 0.0}
train:
  {seed: SEED, epochs: EPOCHS, batch: 32, learning_rate: 0.01, dropout: 0.0, label_smoothing: 0.0, weight_decay: 0.0,
   shift: 0.0, zoom: 0.0, rotate: 0.0, brightness: 0.0, contrast: 0.0, steps_per_call: 100}
tune: {folds: [0, 1], search: {learning_rate: {low: 1.0e-3, high: 0.03, log: true}}}
predict: {batch: 128, views: [identity, shift_up]}
policy: {rounds: 2}
blend: {rounds: 5, bags: 4}
honest: {resamples: 200}
members:
"""
BASE = "architecture: cnn, image_size: 16, alpha: 0.5, weights: none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=360)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=list(MEMBERS), choices=list(MEMBERS))
    parser.add_argument("--json", type=Path, help="write every result there")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(ROOT))
    results: list[dict[str, Any]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        with tempfile.TemporaryDirectory(prefix="random") as folder:
            results.append(one_seed(Path(folder), seed, options))
        scores = ", ".join(f"{kind} {score['z']:+.1f}" for kind, score in results[-1]["kinds"].items())
        print(f"seed {seed}: z {scores}; tuned folds {results[-1]['tuned_folds']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results))
    return summary(results)


def one_seed(folder: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """kinds: kind -> accuracy and z on the rows that took no part in tuning.  tuned_folds: the folds left out."""
    write_source(folder / "photos", seed, options.rows)
    text = PARAMS + "".join(f"  {name}: {{{BASE}{MEMBERS[name]}}}\n" for name in options.kinds)
    values = {"ROOT": ROOT, "SOURCE": folder / "photos", "SEED": seed, "FOLDS": options.folds, "EPOCHS": options.epochs}
    for key, value in values.items():
        text = text.replace(key, str(value))
    (folder / "params.yaml").write_text(text)
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        for stage in ("download", "prepare", "tune", "train", "predict", "blend"):
            sets = f"tune.trials={options.trials} tune.members=[tuned]" if stage == "tune" else ""
            if stage != "tune" or "tuned" in options.kinds:
                importlib.import_module(f"pipelines.main_job.{stage}").run(job_of(folder, sets))
    return scores_of(folder)


def job_of(folder: Path, sets: str = "") -> Any:
    from competition.config.params_file import load_params, parse_overrides
    from competition.workspace.workspace import Workspace
    from pipelines.terminal.job import Job
    from pipelines.terminal.options import Options

    overrides = tuple(parse_overrides(sets))
    options = Options(params=folder / "params.yaml")
    work = folder / "work" / "random_labels"
    work.mkdir(parents=True, exist_ok=True)
    workspace = Workspace(work, load_params(folder / "params.yaml", overrides), overrides)
    return Job(workspace, options, folder / "submissions")


def scores_of(folder: Path) -> dict[str, Any]:
    from competition.workspace.current_blend import stored_blends
    from competition.workspace.ensemble_inputs import load_predictions, prediction_sources

    job = job_of(folder)
    rows = load_predictions(job.workspace, prediction_sources(job.workspace, False))
    honest = ~np.isin(rows.folds, rows.tuned_folds)
    chance = 1 / CLASSES
    scores = {}
    for name, views in rows.oof.items():
        accuracy = float((views.view("identity").argmax(1) == rows.labels)[honest].mean())
        error = (chance * (1 - chance) / honest.sum()) ** 0.5
        scores[name] = {"accuracy": accuracy, "z": (accuracy - chance) / error}
    folder = stored_blends(job.work)[0][0]
    assert folder is not None
    blend = json.loads((folder / "scores.json").read_text())
    error = (chance * (1 - chance) / blend["honest_rows"]) ** 0.5
    scores["blend"] = {"accuracy": blend["honest"], "z": (blend["honest"] - chance) / error}
    return {"kinds": scores, "tuned_folds": list(rows.tuned_folds), "honest_rows": blend["honest_rows"]}


def write_source(source: Path, seed: int, rows: int) -> None:
    """Write photos of digits with random labels, the same number of each class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(seed)
    pictures = load_digits().images[rng.permutation(1_797)[: rows + 8]]
    labels = rng.permutation(np.arange(rows) % CLASSES)
    source.mkdir(parents=True)
    names = [f"i{n:04}" for n in range(rows)] + [f"t{n}" for n in range(8)]
    for name, picture in zip(names, pictures, strict=True):
        grey = Image.fromarray((picture * 15.9).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        grey.convert("RGB").save(source / f"{name}.png")
    lines = [f"{name},c{label}" for name, label in zip(names, labels, strict=False)]
    (source / "train.csv").write_text("\n".join(["id,label", *lines]) + "\n")
    (source / "test.csv").write_text("\n".join(["id", *names[rows:]]) + "\n")
    sample = [f"{name},c0" for name in names[rows:]]
    (source / "sample_submission.csv").write_text("\n".join(["id,label", *sample]) + "\n")


def summary(results: Sequence[dict[str, Any]]) -> int:
    """Print a line per kind; return exit code 1 if one of them scores above chance too often or on average."""
    worst, count = 0, len(results)
    for kind in results[0]["kinds"]:
        z = np.array([result["kinds"][kind]["z"] for result in results])
        accuracy = np.mean([result["kinds"][kind]["accuracy"] for result in results])
        above, mean = int((z > 2).sum()), float(z.mean())
        leaks = above > max(1, count // 20) or abs(mean) > 3 / count**0.5
        worst = max(worst, int(leaks))
        print(
            f"RESULT: {kind}: mean accuracy {accuracy:.4f}, within two standard errors in {int((np.abs(z) <= 2).sum())} of "
            f"{count} seeds, above in {above}, mean z {mean:+.2f} +- {1 / count**0.5:.2f}{'  LEAK' if leaks else ''}"
        )
    return worst


if __name__ == "__main__":
    sys.exit(main())
