"""Train every fold model that is not current, in one process: a member is compiled once, its weights are reset between folds."""

import faulthandler
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    is_nested,
    member_with_tuned_values,
    model_path,
    study_differences,
    teacher_models,
    tuning_result_path,
)
from competition.artifacts.manifest import Manifest, read_manifest
from competition.artifacts.soft_labels import load_soft_labels
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds, Member
from competition.config.params_file import ancestors, in_training_order
from competition.data.cache import is_streamed
from competition.data.prepared import Prepared, load_prepared
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.fold_training import remove_checkpoints, train_fold
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, selected_folds, selected_members
from pipelines.teachers import describe_fold, is_trained, update_soft_labels
from pipelines.trainer import open_trainer, start_device

if TYPE_CHECKING:
    from competition.training.input_stall import StepTimes

HUNG_EXIT = 5
FIRST_PAUSE = 5.0  # seconds before a lost device is opened again; three times as long before each later attempt


def run(job: Job) -> None:
    """data/, tune/ -> members/<member>/fold<k>/: weights.npz, history.csv, manifest.json"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    names = [name for name in in_training_order(job.params) if name in selected_members(job)]
    for name in names:
        member = tuned_member(job, name)
        train_nested_teachers(job, prepared, name, member)
        folds: list[ExcludedFolds] = list(selected_folds(job))
        stale = [fold for fold in folds if job.options.force or not is_trained(job, prepared, name, member, fold)]
        current = [fold for fold in folds if fold not in stale]
        if current:
            job.echo(f"train {name}: {'folds' if len(current) > 1 else 'fold'} {', '.join(map(str, current))} current")
        for fold in current:
            remove_checkpoints(model_path(job.work, name, fold).parent)
        if stale:
            train_with_retries(job, name, partial(train_member, job, prepared, name, member, stale))
    print_summary(job, names)


def tuned_member(job: Job, name: str) -> Member:
    """The member with its tuned values, which are printed; so is the reason if a study is not used."""
    member, origins = member_with_tuned_values(job.work, job.params, name, job.overrides)
    if origins:
        job.echo(f"train {name}: " + ", ".join(f"{key} {value}" for key, value in origins.items()))
    if changes := study_differences(job.work, job.params, name):
        job.echo(
            f"train {name}: {display_path(tuning_result_path(job.work, name))} is not used because the data or the member "
            f"have changed since ({'; '.join(changes[:3])}); `make tune` repeats the study"
        )
    return member


def train_nested_teachers(job: Job, prepared: Prepared, name: str, member: Member) -> None:
    """Train the missing teacher models without two folds that the selected folds of a nested student learn from."""
    folds = selected_folds(job)
    if not any(is_nested(member, fold) for fold in folds):
        return
    pairs = sorted({pair for fold in folds for pair in teacher_models(member, job.params.prepare.folds, fold)})
    for teacher in ancestors(job.params, name):
        teacher_member, _ = member_with_tuned_values(job.work, job.params, teacher, job.overrides)
        missing = [pair for pair in pairs if not is_trained(job, prepared, teacher, teacher_member, pair)]
        if missing:
            job.echo(f"train {name}: {len(missing)} of {len(pairs)} nested teacher models of {teacher} are missing")
            train_with_retries(job, teacher, partial(train_member, job, prepared, teacher, teacher_member, missing))


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


def train_member(
    job: Job, prepared: Prepared, name: str, member: Member, pending: list[ExcludedFolds], alive: Callable[[], None]
) -> None:
    """Train the models in `pending` and remove each from it when its manifest is written.

    pending: the excluded fold of each model, or two for a nested teacher.  alive: to be called at every step.
    """
    from competition.training.input_stall import InputStallDetector

    device = start_device(job)
    names = ", ".join(str(fold) if isinstance(fold, int) else f"{fold[0]}+{fold[1]}" for fold in pending)
    job.echo(f"train {name}: on {device.replicas} x {device.kind} ({device.reason}); folds {names}")
    for teacher in member.teacher:
        same_fold = [fold for fold in pending if not is_nested(member, fold)]
        update_soft_labels(job, prepared, name, teacher, same_fold, device, alive)
    soft = partial(load_soft_labels, job.work, prepared, job.params.prepare.folds, member) if member.teacher else None
    trainer = open_trainer(job, prepared, member, name, device=device, soft_labels=soft, alive=alive)
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
            manifest_path = model_path(job.work, name, fold)
            depends = fold_model_dependencies(job.work, prepared, job.params, member, fold)

            def progress(step: int, steps: int, text: str, fold: ExcludedFolds = fold, n: int = position) -> None:
                alive()
                bar.set_postfix_str(f"{describe_fold(fold)}, {text}", refresh=False)
                bar.update_to(n * steps + step, total * steps)

            make = partial(train_fold, job, trainer, depends, fold, manifest_path.parent, progress, stall_detector)
            manifest = job.cached(f"train {name} {describe_fold(fold)}", manifest_path, depends, make)
            remove_checkpoints(manifest_path.parent)  # after the manifest: a kill before it costs no steps
            pending.remove(fold)
            bar.clear()
            job.echo(f"train {name} {describe_fold(fold)}: {result_line(prepared.competition.metric, manifest)}")


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


def print_summary(job: Job, names: Sequence[str]) -> None:
    """Print mean and range of the held-out scores of each member with at least two trained folds."""
    for name in names:
        manifests = [read_manifest(fold_model_path(job.work, name, f)) for f in range(job.params.prepare.folds)]
        scores = np.array([manifest.result["held_out"] for manifest in manifests if manifest])
        if len(scores) > 1:
            # The spread over folds, not a standard error: folds share their training rows.
            job.echo(
                f"train {name}: {len(scores)} folds, held-out {scores.mean():.4f} "
                f"(from {scores.min():.4f} to {scores.max():.4f}) in {display_path(job.path('members', name))}"
            )


if __name__ == "__main__":
    main("train")
