"""Train every fold model that is not current, in one process: a member is compiled once, its weights are reset between folds."""

import faulthandler
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    is_nested,
    is_trained,
    model_path,
    teacher_models,
)
from competition.artifacts.locks import last_holder
from competition.artifacts.manifest import Manifest, digest_of, files_intact, read_manifest
from competition.artifacts.replacement import again_path, replace_model
from competition.artifacts.runs import Run
from competition.artifacts.scores import held_out_score
from competition.artifacts.soft_labels import load_soft_labels
from competition.artifacts.studies import member_with_tuned_values, study_differences
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds
from competition.config.params_file import ancestors, in_training_order
from competition.data.cache import is_streamed
from competition.data.prepared import Prepared
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.fold_training import remove_checkpoints, train_fold
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, selected_folds, selected_members
from pipelines.teachers import describe_fold, update_soft_labels
from pipelines.trainer import open_trainer, start_device

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.input_stall import InputStallDetector, StepTimes
    from competition.training.trainer import Trainer

HUNG_EXIT = 5
AUGMENTED_IMAGES = 16  # on the sheet of an augmented batch
FIRST_PAUSE = 5.0  # seconds before a lost device is opened again; three times as long before each later attempt


def run(job: Job) -> None:
    """data/, tune/ -> members/<member>/<run>/fold<k>/: weights.npz, history.csv, oof.npz, manifest.json"""
    prepared = job.prepared()
    names = [name for name in in_training_order(job.params) if name in selected_members(job)]
    for name in names:
        show_tuned_values(job, prepared, name)
        train_nested_teachers(job, prepared, name)
        for run in job.runs_of(prepared, name):
            train_run(job, prepared, run)
    print_summary(job, prepared, names)


def train_run(job: Job, prepared: Prepared, run: Run) -> None:
    """Train the selected fold models of a run that are not current, or all of them with FORCE=1."""
    folds: list[ExcludedFolds] = list(selected_folds(job))
    stale = [fold for fold in folds if job.options.force or not is_trained(run, fold)]
    current = [fold for fold in folds if fold not in stale]
    stale = interrupted_last(run, stale)
    if current:
        job.echo(f"train {run.title}: {'folds' if len(current) > 1 else 'fold'} {', '.join(map(str, current))} current")
    for fold in current:
        remove_checkpoints(model_path(run, fold).parent)
    if stale:
        train_with_retries(job, run.title, partial(train_models, job, prepared, run, stale))


def interrupted_last(run: Run, folds: list[ExcludedFolds]) -> list[ExcludedFolds]:
    """The folds, last those whose process died: one that crashes each time must not keep the others from being trained."""
    return sorted(folds, key=lambda fold: last_holder(lock_path(run, fold)) is not None)


def lock_path(run: Run, fold: ExcludedFolds) -> Path:
    """Of the lock under which this model is trained, in its place or again."""
    target = model_path(run, fold)
    again = again_path(run.folder, target)
    return (again if again.parent.exists() else target).with_suffix(".lock")


def show_tuned_values(job: Job, prepared: Prepared, name: str) -> None:
    """Print the member's tuned values, or the reason why the newest study is not used."""
    _, origins = member_with_tuned_values(job.work, prepared, job.params, name, job.overrides)
    if origins:
        job.echo(f"train {name}: " + ", ".join(f"{key} {value}" for key, value in origins.items()))
    if changes := study_differences(job.work, prepared, job.params, name):
        job.echo(
            f"train {name}: {display_path(job.path('tune', name))} is not used because the data or the member "
            f"have changed since ({'; '.join(changes[:3])}); `make tune` repeats the study"
        )


def train_nested_teachers(job: Job, prepared: Prepared, name: str) -> None:
    """Train the missing teacher models without two folds that the selected folds of a nested student learn from."""
    folds, member = selected_folds(job), job.params.members[name]
    if not any(is_nested(member, fold) for fold in folds):
        return
    pairs = sorted({pair for fold in folds for pair in teacher_models(member, job.params.prepare.folds, fold)})
    for run in [run for teacher in ancestors(job.params, name) for run in job.runs_of(prepared, teacher)]:
        missing = [pair for pair in pairs if not is_trained(run, pair)]
        if missing:
            job.echo(f"train {name}: {len(missing)} of {len(pairs)} nested teacher models of {run.title} are missing")
            train_with_retries(job, run.title, partial(train_models, job, prepared, run, missing))


def train_with_retries(job: Job, name: str, train: Callable[[Callable[[], None]], None]) -> None:
    """Call train(alive) under a watchdog; call it again, from its checkpoints, each time the device was lost.

    Raises UserError if the device was lost more often than device.retries allows.
    """
    start_backend(job)
    from competition.training.fault_tolerance import Watchdog, is_device_loss, reset_devices, retry_on_device_loss

    limits = job.params.device

    def reopen(attempt: int, error: Exception) -> None:
        job.echo(
            f"train {name}: the device was lost ({one_line(error)}); opening it again, try {attempt} of {limits.retries}"
        )
        reset_devices()
        time.sleep(FIRST_PAUSE * 3 ** (attempt - 1))

    def exit_hung() -> None:
        seconds = f"{limits.hang_seconds:g} s (device.hang_seconds)"
        print(f"goldfold: no step for {seconds}; the stacks of all threads:", file=sys.stderr)
        faulthandler.dump_traceback()
        print("goldfold: stopped; the same command resumes from the last checkpoint", file=sys.stderr, flush=True)
        os._exit(HUNG_EXIT)

    try:
        with Watchdog(limits.hang_seconds, exit_hung) as alive:
            retry_on_device_loss(lambda: train(alive), limits.retries, reopen)
    except Exception as error:
        if not is_device_loss(error):
            raise
        raise UserError(
            f"the device was lost {limits.retries + 1} times, most recently with: {one_line(error)}; the same command "
            "resumes from the last checkpoint (device.retries is the number of times it is opened again)"
        ) from error


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def train_models(
    job: Job, prepared: Prepared, run: Run, pending: list[ExcludedFolds], alive: Callable[[], None]
) -> None:
    """Train the models in `pending` and remove each from it when it is complete.

    pending: the excluded fold of each model, or two for a nested teacher.  alive: to be called at every step.
    Raises UserError with the largest batch that fits if the memory of the device is exhausted.
    """
    device = start_device(job)
    from competition.training.fault_tolerance import is_out_of_memory

    job.begin_run(run)
    try:
        train_on(device, job, prepared, run, pending, alive)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        error.__traceback__ = error.__context__ = None  # its frames hold the engine, and with it the memory
        memory_error = error
    else:
        return
    gc.collect()
    raise out_of_memory(device, job, prepared, run, alive) from memory_error


def out_of_memory(device: "Device", job: Job, prepared: Prepared, run: Run, alive: Callable[[], None]) -> UserError:
    """The error for a batch that does not fit the device, with the largest that does."""
    from competition.training.largest_batch import step_fits, too_large

    classes, targets = len(prepared.competition.classes), prepared.competition.targets

    def fits(batch: int) -> bool:
        alive()
        answer = step_fits(run.member, classes, device, batch, targets)
        job.echo(f"train {run.title}: a batch of {batch} {'fits' if answer else 'does not fit'}")
        return answer

    job.echo(f"train {run.title}: the memory of the device is exhausted; searching the largest batch that fits")
    return too_large(run.title, run.member, device.replicas, fits)


def train_on(
    device: "Device",
    job: Job,
    prepared: Prepared,
    run: Run,
    pending: list[ExcludedFolds],
    alive: Callable[[], None],
) -> None:
    """Train the models in `pending` on a device; see train_models."""
    from competition.training.input_stall import InputStallDetector

    member, name = run.member, run.title
    names = ", ".join(str(fold) if isinstance(fold, int) else f"{fold[0]}+{fold[1]}" for fold in pending)
    job.echo(
        f"train {name}: run {run.label} on {device.replicas} x {device.kind} ({device.reason}); "
        f"{'folds' if len(pending) > 1 else 'fold'} {names}"
    )
    for teacher in [teacher for runs in run.teachers.values() for teacher in runs]:
        same_fold = [fold for fold in pending if not is_nested(member, fold)]
        update_soft_labels(job, prepared, run, teacher, same_fold, device, alive)
    soft = partial(load_soft_labels, prepared, run) if member.teacher else None
    trainer = open_trainer(job, prepared, member, name, device=device, soft_labels=soft, alive=alive)
    draw_augmented_batch(prepared, trainer, run, pending)
    streamed = is_streamed(trainer.images.pixels)
    if streamed:
        job.echo(
            f"train {name}: {prod(trainer.images.pixels.shape) / 1e9:.1f} GB of decoded images fit neither "
            "cache.ram_gigabytes nor cache.disk_gigabytes (nor the free disk): every epoch decodes them again"
        )
    with progress_bar(None, name) as bar:

        def report_stall(times: "StepTimes") -> None:
            bar.clear()
            job.echo(f"train {name}: {times.describe(member.train, streamed)}")

        stall_detector, total = InputStallDetector(report_stall), len(pending)
        for position, fold in enumerate(tuple(pending)):

            def progress(step: int, steps: int, text: str, fold: ExcludedFolds = fold, n: int = position) -> None:
                alive()
                bar.set_text(f"{describe_fold(fold)}, {text}")
                bar.update_to(n * steps + step, total * steps)

            manifest = train_model(job, trainer, run, fold, progress, stall_detector)
            pending.remove(fold)
            bar.clear()
            job.echo(f"train {name} {describe_fold(fold)}: {result_line(prepared.competition.metric, manifest)}")


def draw_augmented_batch(prepared: Prepared, trainer: "Trainer", run: Run, pending: Sequence[ExcludedFolds]) -> None:
    """Draw the start of the first training batch, augmented, once per run: `make report` shows it."""
    from competition.report.samples import AUGMENTED
    from competition.report.sheets import contact_sheet

    folds = [fold for fold in pending if isinstance(fold, int)]
    if (run.folder / AUGMENTED).is_file() or not folds:
        return
    pixels, targets, _ = trainer.first_batch(folds[0], run.member.train)
    classes = prepared.competition.classes
    captions = [
        f"{row[0]:.4g}" if len(row) == 1 else f"{classes[int(row.argmax())]} {row.max():.2f}"
        for row in targets[:AUGMENTED_IMAGES]
    ]
    contact_sheet(pixels[:AUGMENTED_IMAGES], captions, run.folder / AUGMENTED)


def train_model(
    job: Job,
    trainer: "Trainer",
    run: Run,
    fold: ExcludedFolds,
    progress: Callable[[int, int, str], None],
    stall_detector: "InputStallDetector",
) -> Manifest:
    """Train one model of a run. A complete earlier model stays in its place until the new one is complete."""
    target, depends, title = model_path(run, fold), fold_model_dependencies(run, fold), f"train {run.title}"
    previous = read_manifest(target)
    trained_before = previous is not None and files_intact(target, previous)
    path = again_path(run.folder, target) if trained_before else target
    if trained_before and job.options.force:
        job.echo(f"{title} {describe_fold(fold)}: made again (FORCE=1)")
    make = partial(
        train_fold, job, trainer, run.member.train, digest_of(depends), fold, path.parent, progress, stall_detector
    )
    manifest = job.cached(f"{title} {describe_fold(fold)}", path, depends, make)
    remove_checkpoints(path.parent)  # after the manifest: a kill before it costs no steps
    if trained_before:
        replace_model(run.folder, target)
    return manifest


def result_line(metric: str, manifest: Manifest) -> str:
    """The result of one fold model for the terminal."""
    result = manifest.result
    line = f"{metric} {result['held_out']:.4f} on its held-out rows, {result['seconds']:.0f} s"
    if "inner" in result:
        line += (
            f"; epoch {result['epoch']} of {result['epochs']} has the best score on its inner validation part "
            f"({result['inner']:.4f}): its weights predict these rows and the test rows"
        )
    return line


def print_summary(job: Job, prepared: Prepared, names: Sequence[str]) -> None:
    """Print mean and range of the held-out scores of each run with at least two trained folds."""
    for run in [run for name in names for run in job.runs_of(prepared, name)]:
        folds = [fold for fold in range(job.params.prepare.folds) if read_manifest(fold_model_path(run, fold))]
        scores = np.array([held_out_score(prepared, run, fold) for fold in folds])
        if len(scores) > 1:
            # The spread over folds, not a standard error: folds share their training rows.
            job.echo(
                f"train {run.title}: {len(scores)} folds, held-out {scores.mean():.4f} "
                f"(from {scores.min():.4f} to {scores.max():.4f}) in {display_path(run.folder)}"
            )


if __name__ == "__main__":
    main("train")
