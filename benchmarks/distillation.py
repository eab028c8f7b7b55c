"""Gain of two leak-free distillation schemes on real photos over a student without teachers, in one run.

    python -m benchmarks.distillation --source flowers102_128.zip --weights FOLDER_OF_WEIGHTS

same_fold: the student of fold k learns from the teacher's fold model k. nested: its soft label for a row of fold j comes
from a teacher trained without folds j and k. All students share rows, seeds, epochs and held-out folds. Per row, accuracy
and log likelihood are averaged over the training seeds; a standard error is that of the mean over rows, paired, and does
not cover other seeds. `--leaking` adds the student that learns from the teacher's out-of-fold predictions, whose teachers
were trained on its held-out fold: its gain is not real.

1,200 photos, 3 folds, 3 epochs, one seed: nested - same_fold is +.0033 +- .0092 in accuracy at weight 0.3 and -.1378 +- .0155
in log likelihood (nested teachers learn from a third of the photos, those of the same fold from two thirds), so same_fold,
which also trains no further models, is the default. Neither gained over no teacher.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.photos import ROOT, Setup, load, scratch, write

RECIPE = ROOT / "recipes" / "flowers102.yaml"


@dataclass(frozen=True)
class StudentScores:
    """Out-of-fold scores of one student per row.  correct: (N,) 0 or 1.  likelihood: (N,) log probability of the label."""

    correct: np.ndarray
    likelihood: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="a zip or a folder of photos")
    parser.add_argument("--weights", type=Path, required=True, help="folder of the pretrained weights of MobileNet")
    parser.add_argument("--images", type=int, default=1_500)
    parser.add_argument("--size", type=int, default=96, help="pixels")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--teacher-weight", type=float, nargs="+", default=[0.3])
    parser.add_argument("--minutes", type=float, default=30.0, help="start no further seed after this time")
    parser.add_argument("--leaking", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    setup = Setup(options.source, options.images, options.size, "", 1.0, options.epochs, options.folds, 32, 128)
    started, scores_by_seed = time.monotonic(), list[dict[str, StudentScores]]()
    with scratch() as folder:
        write(setup, Path(folder))
        images, classes = load(setup, Path(folder), ram=2 * 10**9)
        for seed in range(options.seeds):
            if seed and time.monotonic() - started > 60 * options.minutes:
                break
            scores_by_seed.append(one_seed(setup, images, classes, options, seed))
            print(f"seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
            report(scores_by_seed, len(images.ids), classes, options)


def one_seed(
    setup: Setup, images: Any, classes: int, options: argparse.Namespace, seed: int
) -> dict[str, StudentScores]:
    """Name of a student -> its out-of-fold scores."""
    from competition.config.params_file import load_params
    from competition.ensemble.predictions import Predictions
    from competition.training.device import open_device
    from competition.training.fold_rows import FoldRows
    from competition.training.trainer import Trainer

    params = load_params(RECIPE)
    device, folds = open_device(params.device), range(setup.folds)

    def member_of_size(alpha: float, size: int) -> Any:
        train = replace(params.train, epochs=setup.epochs, batch=setup.batch, seed=seed)
        file = options.weights / f"mobilenet_{alpha}_{size}_notop.weights.h5"
        return replace(params.members["mobilenet"], alpha=alpha, weights=str(file), image_size=setup.size, train=train)

    def train_and_predict(trainer: Trainer, fold: Any) -> Predictions:
        """Train one model and predict all rows."""
        trainer.train(fold, trainer.member.train, None, lambda *_: None, lambda: False, watch=False)
        predictions = trainer.predict(trainer.engine.weights(), images, np.arange(len(images.ids)), ["identity"])
        return Predictions(predictions.ids, predictions.view("identity"))

    def trainer_of(member: Any, soft: Callable[[Any], Predictions] | None = None) -> Trainer:
        return Trainer(FoldRows(member, images, classes, soft_labels=soft), "accuracy", device, setup.predict_batch)

    def out_of_fold(trainer: Trainer) -> StudentScores:
        probs = np.zeros((len(images.ids), classes), np.float32)
        for fold in folds:
            probs[images.folds == fold] = train_and_predict(trainer, fold).probs[images.folds == fold]
        label_probs = probs[np.arange(len(probs)), images.labels]
        return StudentScores((probs.argmax(1) == images.labels).astype(float), np.log(np.maximum(label_probs, 1e-4)))

    trainer = trainer_of(member_of_size(1.0, 224))
    fold_models = {fold: train_and_predict(trainer, fold) for fold in folds}
    pair_models = {pair: train_and_predict(trainer, pair) for pair in combinations(folds, 2)}

    def combine(models: Callable[[int], Predictions]) -> Predictions:
        """The rows of every fold j as predicted by models(j)."""
        probs = np.zeros((len(images.ids), classes), np.float32)
        for j in folds:
            probs[images.folds == j] = models(j).probs[images.folds == j]
        return Predictions(images.ids, probs)

    def nested(k: int) -> Predictions:
        return combine(
            lambda j: fold_models[k] if j == k else pair_models[min(j, k), max(j, k)]
        )  # fold k is not trained on

    schemes: dict[str, Callable[[int], Predictions]] = {"same_fold": lambda k: fold_models[k], "nested": nested}
    if options.leaking:
        schemes["leaking"] = lambda k: combine(lambda j: fold_models[j])
    student = member_of_size(0.75, 192)
    scores = {"none": out_of_fold(trainer_of(student))}
    for weight in options.teacher_weight:
        for scheme, soft in schemes.items():
            distilled = replace(student, teacher=("teacher",), teacher_weight=weight)
            scores[f"{scheme} {weight:g}"] = out_of_fold(trainer_of(distilled, soft))
    return scores


def report(
    scores_by_seed: list[dict[str, StudentScores]], rows: int, classes: int, options: argparse.Namespace
) -> None:
    names = list(scores_by_seed[0])
    mean = {
        name: StudentScores(
            np.mean([seed[name].correct for seed in scores_by_seed], axis=0),
            np.mean([seed[name].likelihood for seed in scores_by_seed], axis=0),
        )
        for name in names
    }
    print(
        f"{rows:,} photos, {classes} classes, {options.size} px, {options.folds} folds, {options.epochs} epochs, "
        f"{len(scores_by_seed)} seeds; teacher MobileNet 1.0, student MobileNet 0.75"
    )
    none = mean["none"]
    print(f"{'student':>15}: accuracy {none.correct.mean():.4f}, log likelihood {none.likelihood.mean():.4f} (none)")
    for name in names[1:]:
        print(f"{name:>15}: {difference(mean[name], none)}")
    for weight in options.teacher_weight:
        both = mean[f"nested {weight:g}"], mean[f"same_fold {weight:g}"]
        print(f"nested - same_fold at {weight:g}: {difference(*both)}", flush=True)


def difference(after: StudentScores, before: StudentScores) -> str:
    parts = []
    for name in ("correct", "likelihood"):
        gap = getattr(after, name) - getattr(before, name)
        title = {"correct": "accuracy", "likelihood": "log likelihood"}[name]
        parts.append(f"{title} {gap.mean():+.4f} +- {gap.std(ddof=1) / len(gap) ** 0.5:.4f}")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
