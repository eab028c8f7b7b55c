"""Train every fold model that is not current, in one process: a member is compiled once, its weights reset between folds."""

import csv
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_manifest,
    is_nested,
    member_with_tuned_values,
    model_manifest,
    soft_labels_dependencies,
    soft_labels_manifest,
    study_differences,
    teacher_models,
    training_parts,
    tuning_result_path,
)
from competition.artifacts.manifest import atomic_write, digest_of, is_current, read_manifest
from competition.artifacts.soft_labels import load_soft_labels, predict_soft_labels
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds, Member
from competition.config.params_file import ancestors, in_training_order
from competition.data.cache import is_streamed
from competition.data.prepared import Prepared, load_prepared
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.progress import Bar, progress_bar
from pipelines.runner import Job, display_path, image_cache, selected_folds, selected_members

SIGTERM_EXIT, HUNG_EXIT = 143, 5
FIRST_PAUSE = 5.0  # seconds before a lost device is opened again; three times as long before each later try


def run(job: Job) -> None:
    """data/, tune/ -> members/<member>/fold<k>/: weights.npz, history.csv, manifest.json"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    names = [name for name in in_training_order(job.params) if name in selected_members(job)]
    for name in names:
        member = member_said(job, name)
        train_nested_teachers(job, prepared, name, member)
        missing = missing_folds(job, prepared, name, member)
        current = [fold for fold in selected_folds(job) if fold not in missing]
        if current:
            job.echo(f"train {name}: {'folds' if len(current) > 1 else 'fold'} {', '.join(map(str, current))} current")
        if missing:
            train_persistently(job, name, partial(train_member, job, prepared, name, member, missing))
    summary(job, names)


def member_said(job: Job, name: str) -> Member:
    member, origins = member_with_tuned_values(job.work, job.params, name, job.overrides)
    if origins:
        job.echo(f"train {name}: " + ", ".join(f"{key} {value}" for key, value in origins.items()))
    if changes := study_differences(job.work, job.params, name):
        job.echo(
            f"train {name}: {display_path(tuning_result_path(job.work, name))} is not used, it was tuned for something else "
            f"({'; '.join(changes[:3])}); `make tune` makes it again"
        )
    return member


def train_nested_teachers(job: Job, prepared: Prepared, name: str, member: Member) -> None:
    """The teacher models without two folds that the picked folds of a nested student learn from; each is trained once."""
    folds = selected_folds(job)
    if not any(is_nested(member, fold) for fold in folds):
        return
    pairs = sorted({pair for fold in folds for pair in teacher_models(member, job.params.prepare.folds, fold)})
    for teacher in ancestors(job.params, name):
        one, _ = member_with_tuned_values(job.work, job.params, teacher, job.overrides)
        lacking = [pair for pair in pairs if not has_model(job, prepared, teacher, one, pair)]
        if lacking:
            job.echo(f"train {name}: {len(lacking)} of {len(pairs)} nested teacher models of {teacher} are missing")
            train_persistently(job, teacher, partial(train_member, job, prepared, teacher, one, lacking))


def has_model(job: Job, prepared: Prepared, name: str, member: Member, fold: ExcludedFolds) -> bool:
    depends = fold_model_dependencies(job.work, prepared, job.params, member, fold)
    return is_current(model_manifest(job.work, name, fold), depends)


def missing_folds(job: Job, prepared: Prepared, name: str, member: Member) -> list[ExcludedFolds]:
    return [
        fold for fold in selected_folds(job) if job.options.force or not has_model(job, prepared, name, member, fold)
    ]


def train_persistently(job: Job, name: str, train: Callable[[Callable[[], None]], None]) -> None:
    """train(alive), watched, and again from its checkpoints when the device was lost."""
    start_backend(job)
    from competition.training.fault_tolerance import Watchdog, is_device_loss, reset_devices, retry_on_device_loss

    limits = job.params.device

    def again(number: int, error: Exception) -> None:
        job.echo(
            f"train {name}: the device was lost ({in_one_line(error)}); opening it again, try {number} of {limits.retries}"
        )
        reset_devices()
        time.sleep(FIRST_PAUSE * 3 ** (number - 1))

    def hung() -> None:
        print(
            f"goldfold: no step for {limits.hang_seconds:g} s (device.hang_seconds); this is where it stands:",
            file=sys.stderr,
        )
        faulthandler.dump_traceback()
        print("goldfold: ended; the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
        os._exit(HUNG_EXIT)

    try:
        with Watchdog(limits.hang_seconds, hung) as alive:
            retry_on_device_loss(lambda: train(alive), limits.retries, again)
    except Exception as error:
        if not is_device_loss(error):
            raise
        raise UserError(
            f"the device was lost {limits.retries + 1} times, in the end with: {in_one_line(error)}; "
            "the same command goes on from the last checkpoint (device.retries says how often it is opened again)"
        ) from error


def in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def train_member(
    job: Job, prepared: Prepared, name: str, member: Member, missing: list[ExcludedFolds], alive: Callable[[], None]
) -> None:
    """Each fold (two of them for a nested teacher) leaves the list `missing` when its model is done."""
    from competition.training.device import open_device
    from competition.training.input_stall import InputStallDetector, Waiting
    from competition.training.trainer import Trainer, load_images

    device = open_device(job.params.device, job.path("cache", "compiled"))
    job.echo(
        f"train {name}: on {device.replicas} x {device.kind} ({device.reason}); folds {', '.join(map(short, missing))}"
    )
    for teacher in member.teacher:
        predict_teacher(job, prepared, name, teacher, [f for f in missing if not is_nested(member, f)], device, alive)
    with progress_bar(None, f"{name}: decoding images") as bar:
        images = load_images(
            prepared,
            training_parts(member),
            member.image_size,
            job.params.prepare.fit,
            image_cache(job),
            bar.update_to,
        )
    streamed = is_streamed(images.pixels)
    if streamed:
        job.echo(
            f"train {name}: {prod(images.pixels.shape) / 1e9:.1f} GB of decoded images fit neither cache.ram_gigabytes nor "
            "cache.disk_gigabytes (nor the free disk): every image is decoded again each time"
        )
    competition = prepared.competition
    soft = partial(load_soft_labels, job.work, prepared, job.params.prepare.folds, member) if member.teacher else None
    trainer = Trainer(
        member, images, len(competition.classes), competition.metric, device, job.params.predict.batch, soft, alive
    )
    with progress_bar(None, name) as bar:

        def slow(waiting: Waiting) -> None:
            bar.clear()
            job.echo(f"train {name}: {waiting.told(member.train, streamed)}")

        pace = InputStallDetector(slow)
        for done, fold in enumerate(folds := tuple(missing)):
            manifest = model_manifest(job.work, name, fold)
            depends = fold_model_dependencies(job.work, prepared, job.params, member, fold)
            make = partial(
                train_fold, job, trainer, depends, fold, manifest.parent, bar, (done, len(folds)), alive, pace
            )
            made = job.cached(f"train {name} {told(fold)}", manifest, depends, make)
            missing.remove(fold)
            bar.clear()
            said = f"{competition.metric} {made.result['held_out']:.4f} on its held-out rows, {made.result['seconds']:.0f} s"
            if member.train.patience:
                said += (
                    f"; epoch {made.result['epoch']} of {made.result['epochs']} has the best score on its inner validation "
                    f"part ({made.result['inner']:.4f}): its weights predict these rows and the test rows"
                )
            job.echo(f"train {name} {told(fold)}: {said}")


def short(fold: ExcludedFolds) -> str:
    return str(fold) if isinstance(fold, int) else f"{fold[0]}+{fold[1]}"


def told(fold: ExcludedFolds) -> str:
    return f"fold {fold}" if isinstance(fold, int) else f"without folds {fold[0]} and {fold[1]}"


def predict_teacher(
    job: Job,
    prepared: Prepared,
    student: str,
    teacher: str,
    folds: Iterable[ExcludedFolds],
    device: Any,
    alive: Callable[[], None],
) -> None:
    """Soft labels by the teacher's models of these folds, for the rows they learned from: kept beside each model."""
    from competition.training.trainer import Trainer, load_images

    member, _ = member_with_tuned_values(job.work, job.params, teacher, job.overrides)
    trainer = None
    for fold in folds:
        if not has_model(job, prepared, teacher, member, fold):
            raise UserError(
                f"member {student} learns from {teacher}, which lacks {told(fold)} or has it by other parameters; "
                f"`make train MEMBER={teacher}` trains it"
            )
        manifest = soft_labels_manifest(job.work, teacher, fold)
        depends = soft_labels_dependencies(job.work, prepared, job.params, teacher, fold)
        if is_current(manifest, depends):
            continue
        if trainer is None:
            images = load_images(
                prepared, ("train",), member.image_size, job.params.prepare.fit, image_cache(job), lambda *_: None
            )
            about = prepared.competition
            batch = job.params.predict.batch
            trainer = Trainer(member, images, len(about.classes), about.metric, device, batch, alive=alive)

        make = partial(write_soft_labels, trainer, model_manifest(job.work, teacher, fold), fold)
        job.cached(f"train {student}: soft labels by {teacher} {told(fold)}", manifest, depends, make)


def write_soft_labels(trainer: Any, model: Path, fold: ExcludedFolds) -> tuple[Iterable[Path], Mapping[str, Any]]:
    from competition.training.checkpoint import load_arrays

    labels, file = (
        predict_soft_labels(trainer, load_arrays(model.with_name("weights.npz")), fold),
        model.parent / "soft",
    )
    labels.save(file / "soft.npz")
    return [file / "soft.npz"], {"rows": len(labels.ids)}


def train_fold(
    job: Job,
    trainer: Any,
    depends: Mapping[str, Any],
    fold: ExcludedFolds,
    folder: Path,
    bar: Bar,
    place: tuple[int, int],
    alive: Callable[[], None],
    pace: Any,
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """place: (fold models of this member done in this run, of how many), for the time left."""
    from competition.training.checkpoint import Checkpoints, save_arrays
    from competition.training.loop import Diverged, Epoch, Stopped

    member = depends["member"]
    checkpoints = Checkpoints(folder / "checkpoints", digest_of(depends))
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))

    def progress(step: int, steps: int, text: str) -> None:
        alive()
        bar.set_postfix_str(f"{told(fold)}, {text}", refresh=False)
        bar.update_to(place[0] * steps + step, place[1] * steps)

    try:
        watch = isinstance(fold, int)  # nobody looks at the score of a nested teacher
        trained = trainer.train(fold, member.train, checkpoints, progress, lambda: bool(asked), watch, pace)
    except Stopped as stopped:
        job.echo(f"train: {stopped}, its checkpoint is on disk; the same command goes on from there")
        raise SystemExit(SIGTERM_EXIT) from None
    except Diverged as error:
        raise UserError(f"{display_path(folder)}: {error}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
    save_arrays(folder / "weights.npz", trainer.engine.weights())
    with atomic_write(folder / "history.csv") as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Epoch)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(epoch) for epoch in trained.history)
    trainer.out_of_fold(fold, trained).save(folder / "oof.npz")
    files = [folder / name for name in ("weights.npz", "history.csv", "oof.npz")]
    checkpoints.clear()
    kept, last = trained.kept, trained.history[-1]
    told_too = {"inner": kept.inner} if member.train.patience else {}
    return files, {
        "held_out": trainer.kept_score(fold, trained),
        "epoch": kept.epoch,
        "epochs": last.epoch,
        "loss": last.loss,
        **told_too,
    }


def summary(job: Job, names: Iterable[str]) -> None:
    for name in names:
        made = [read_manifest(fold_model_manifest(job.work, name, fold)) for fold in range(job.params.prepare.folds)]
        scores = np.array([m.result["held_out"] for m in made if m])
        if len(scores) > 1:
            # The spread over folds, not a standard error: folds share their training rows.
            job.echo(
                f"train {name}: {len(scores)} folds, held-out {scores.mean():.4f} "
                f"(from {scores.min():.4f} to {scores.max():.4f}) in {display_path(job.path('members', name))}"
            )


if __name__ == "__main__":
    main("train")
