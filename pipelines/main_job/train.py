"""Train every fold model that is not current, in one process: a member is compiled once, its weights are reset between folds."""

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import UserError
from competition.config.params import ExcludedFolds
from competition.config.teachers import ancestors, in_training_order
from competition.ensemble.metrics import metric_named
from competition.files.locks import last_holder
from competition.files.manifest import read_manifest
from competition.files.replacement import again_path
from competition.images.pixels import is_streamed
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import (
    fold_model_path,
    is_nested,
    is_trained,
    model_path,
    teacher_models,
)
from competition.workspace.earlier_version import is_of_then
from competition.workspace.runs import Run, runs_of
from competition.workspace.scores import held_out_score, trivial_score
from competition.workspace.soft_labels import load_soft_labels
from competition.workspace.studies import member_with_tuned_values, study_differences
from pipelines.terminal import hosts
from pipelines.terminal.cluster import train_on_cluster
from pipelines.terminal.device_retries import train_with_retries
from pipelines.terminal.fold_training import describe_fold, remove_checkpoints, result_line, train_model
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar
from pipelines.terminal.runner import InUse, Job
from pipelines.terminal.selection import selected_folds, selected_members
from pipelines.terminal.teachers import WAIT_SECONDS, update_soft_labels
from pipelines.terminal.trainer import keep_engine, open_trainer, start_device, target_caption

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.input_stall import StepTimes
    from competition.training.trainer import Trainer

AUGMENTED_IMAGES = 16  # on the sheet of an augmented batch


def run(job: Job) -> None:
    """data/, tune/ -> members/<member>/<run>/fold<k>/: weights.npz, history.csv, oof.npz, manifest.json"""
    _ = job.prepared  # an error before anything is started
    if hosts.are_expected():
        start_device(job)  # the hosts decide together what is missing
    names = [name for name in in_training_order(job.params) if name in selected_members(job)]
    for name in names:
        show_tuned_values(job, name)
        if job.options.cluster:
            continue
        train_nested_teachers(job, name)
        for run in runs_of(job.workspace, name):
            train_run(job, run)
    if job.options.cluster:
        train_on_cluster(job, names)
    print_summary(job, names)


def train_run(job: Job, run: Run) -> None:
    """Train the selected fold models of a run that are not current, or all of them with FORCE=1."""
    folds: list[ExcludedFolds] = list(selected_folds(job))
    stale = [fold for fold in folds if job.options.force or not is_trained(run, fold)]
    stale = hosts.decided(interrupted_last(run, stale))
    current = [fold for fold in folds if fold not in stale]
    if current:
        again = "; FORCE=1 trains it again" if job.options.fold and current else ""
        then = " (trained at 2739021, by the same training: accepted)" if is_of_then(run.depends) else ""
        job.echo(f"train {run.title}: {fold_names(current)} current{then}{again}")
    for fold in current if hosts.writes() else ():
        remove_checkpoints(model_path(run, fold).parent)
    if stale:
        train_with_retries(job, run.title, partial(train_models, job, run, stale))


def interrupted_last(run: Run, folds: list[ExcludedFolds]) -> list[ExcludedFolds]:
    """The folds, last those whose process died: one that crashes each time must not keep the others from being trained."""
    return sorted(folds, key=lambda fold: last_holder(lock_path(run, fold)) is not None)


def lock_path(run: Run, fold: ExcludedFolds) -> Path:
    """Of the lock under which this model is trained, in its place or again."""
    target = model_path(run, fold)
    again = again_path(run.folder, target)
    return (again if again.parent.exists() else target).with_suffix(".lock")


def show_tuned_values(job: Job, name: str) -> None:
    """Print the member's tuned values, or the reason why the newest study is not used."""
    _, origins = member_with_tuned_values(job.workspace, name)
    if origins:
        job.echo(f"train {name}: " + ", ".join(f"{key} {value}" for key, value in origins.items()))
    if changes := study_differences(job.workspace, name):
        job.echo(
            f"train {name}: {display_path(job.path('tune', name))} is not used because the data or the member "
            f"have changed since ({'; '.join(changes[:3])}); `make tune` repeats the study"
        )


def train_nested_teachers(job: Job, name: str) -> None:
    """Train the missing teacher models without two folds that the selected folds of a nested student learn from."""
    folds, member = selected_folds(job), job.params.members[name]
    if not any(is_nested(member, fold) for fold in folds):
        return
    pairs = sorted({pair for fold in folds for pair in teacher_models(member, job.params.prepare.folds, fold)})
    for run in [run for teacher in ancestors(job.params, name) for run in runs_of(job.workspace, teacher)]:
        missing: list[ExcludedFolds] = [
            (a, b) for a, b in hosts.decided([pair for pair in pairs if not is_trained(run, pair)])
        ]
        if missing:
            job.echo(f"train {name}: {len(missing)} of {len(pairs)} nested teacher models of {run.title} are missing")
            train_with_retries(job, run.title, partial(train_models, job, run, missing))


def train_models(job: Job, run: Run, pending: list[ExcludedFolds], alive: Callable[[], None]) -> None:
    """Train the models in `pending` and remove each from it when it is complete.

    pending: the excluded fold of each model, or two for a nested teacher.  alive: to be called at every step.
    Raises UserError with the largest batch that fits if the memory of the device is exhausted.
    """
    device = start_device(job)
    from competition.training.fault_tolerance import is_out_of_memory

    job.begin_run(run)
    try:
        train_on(device, job, run, pending, alive)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        error.__traceback__ = error.__context__ = None  # its frames hold the engine, and with it the memory
        memory_error = error
    else:
        return
    gc.collect()
    raise out_of_memory(device, job, run, alive) from memory_error


def out_of_memory(device: "Device", job: Job, run: Run, alive: Callable[[], None]) -> UserError:
    """The error for a batch that does not fit the device, with the largest that does."""
    from competition.training.largest_batch import step_fits, too_large

    classes, targets = len(job.prepared.competition.classes), job.prepared.competition.targets

    def fits(batch: int) -> bool:
        alive()
        answer = step_fits(run.member, classes, device, batch, targets)
        job.echo(f"train {run.title}: a batch of {batch} {'fits' if answer else 'does not fit'}")
        return answer

    job.echo(f"train {run.title}: the memory of the device is exhausted; searching the largest batch that fits")
    return too_large(run.title, run.member, device.replicas, fits)


def train_on(device: "Device", job: Job, run: Run, pending: list[ExcludedFolds], alive: Callable[[], None]) -> None:
    """Train the models in `pending` on a device; see train_models."""
    prepared = job.prepared
    from competition.training.input_stall import InputStallDetector

    member, name = run.member, run.title
    names = ", ".join(str(fold) if isinstance(fold, int) else f"{fold[0]}+{fold[1]}" for fold in pending)
    job.echo(
        f"train {name}: run {run.label} on {device.replicas} x {device.kind} ({device.reason}); "
        f"{'folds' if len(pending) > 1 else 'fold'} {names}"
    )
    for teacher in [teacher for runs in run.teachers.values() for teacher in runs]:
        same_fold = [fold for fold in pending if not is_nested(member, fold)]
        update_soft_labels(job, run, teacher, same_fold, device, alive)
    soft = partial(load_soft_labels, prepared, run) if member.teacher else None
    trainer = open_trainer(job, member, name, device=device, soft_labels=soft, alive=alive)
    draw_augmented_batch(prepared, trainer, run, pending)
    streamed = is_streamed(trainer.images.pixels)
    if streamed:
        job.echo(
            f"train {name}: {prod(trainer.images.pixels.shape) / 1e9:.1f} GB of decoded images fit neither "
            "cache.ram_gigabytes nor cache.disk_gigabytes (nor the free disk): every epoch decodes them again"
        )
    with Bar(None, name) as bar:

        def report_stall(times: "StepTimes") -> None:
            bar.clear()
            job.echo(f"train {name}: {times.describe(member.train, streamed)}")

        stall_detector, total = InputStallDetector(report_stall), len(pending)

        def train_one(fold: ExcludedFolds) -> None:
            position = total - len(pending)

            def progress(step: int, steps: int, text: str) -> None:
                alive()
                bar.set_text(f"{describe_fold(fold)}, {text}")
                bar.update_to(position * steps + step, total * steps)

            manifest = train_model(job, trainer, run, fold, progress, stall_detector)
            bar.clear()
            job.echo(f"train {name} {describe_fold(fold)}: {result_line(prepared.competition.metric, manifest)}")

        share_models(job, run, pending, train_one, alive)
    keep_engine(job, run, trainer.engine)


def share_models(
    job: Job,
    run: Run,
    pending: list[ExcludedFolds],
    train_one: Callable[[ExcludedFolds], None],
    alive: Callable[[], None],
) -> None:
    """Train the models in `pending`, and remove each from it when it is complete, here or by another process.

    Several `make train` in one work folder share the models: each takes a free one, and waits at the end for those that
    the others train. If one of these ends without its model, that is trained here.
    """
    waited, used = False, InUse("")
    while pending:
        for fold in tuple(pending):
            # One that another process completed meanwhile; hosts that train together see the same.
            if not job.options.force and hosts.decided(is_trained(run, fold)):
                job.echo(f"train {run.title} {describe_fold(fold)}: trained by another process")
                pending.remove(fold)
                continue
            try:
                train_one(fold)
            except InUse as error:
                if hosts.are_joined() or job.options.force:
                    raise
                used = error
            else:
                pending.remove(fold)
        if pending:
            if not waited:
                job.echo(f"train {run.title}: waiting for {fold_names(pending)} ({used})")
            waited = True
            alive()
            time.sleep(WAIT_SECONDS)


def draw_augmented_batch(prepared: Prepared, trainer: "Trainer", run: Run, pending: Sequence[ExcludedFolds]) -> None:
    """Draw the start of the first training batch, augmented, once per run: `make report` shows it."""
    from competition.report.pictures import contact_sheet
    from competition.report.samples import AUGMENTED

    folds = [fold for fold in pending if isinstance(fold, int)]
    if not hosts.writes() or (run.folder / AUGMENTED).is_file() or not folds:
        return
    pixels, targets, _ = trainer.first_batch(folds[0], run.member.train)
    captions = [target_caption(row, prepared.competition.classes) for row in targets[:AUGMENTED_IMAGES]]
    contact_sheet(pixels[:AUGMENTED_IMAGES], captions, run.folder / AUGMENTED)


def print_summary(job: Job, names: Sequence[str]) -> None:
    """Print mean and range of the held-out scores of each run with at least two trained folds."""
    means = 0
    for run in [run for name in names for run in runs_of(job.workspace, name)]:
        folds = [fold for fold in range(job.params.prepare.folds) if read_manifest(fold_model_path(run, fold))]
        scores = np.array([held_out_score(job.prepared, run, fold) for fold in folds])
        if len(scores) > 1:
            means += 1
            tuned = sorted({*run.depends["tuned_folds"]} & set(folds))
            sign = metric_named(job.prepared.competition.metric).sign
            trivial = np.array([trivial_score(job.prepared, fold)[1] for fold in folds])
            unbeaten = int((sign * scores <= sign * trivial).sum())
            beside = f"; the trivial baseline scores {trivial.mean():.4f}"
            beside += f", NOT BEATEN in {unbeaten} of {len(folds)} folds" if unbeaten else ""
            # The spread over folds, not a standard error: folds share their training rows.
            job.echo(
                f"train {run.title}: {len(scores)} folds, mean held-out score {scores.mean():.4f} (from {scores.min():.4f} to "
                f"{scores.max():.4f}{f', optimistic in {fold_names(tuned)}' if tuned else ''}){beside}; in {display_path(run.folder)}"
            )
    if means and (note := tuned_folds_note(job)):
        job.echo(f"train: {note}")


def tuned_folds_note(job: Job) -> str:
    """Why means over folds are not honest scores; "" if no member of the blend was tuned."""
    names = [name for name in job.params.blend.members or job.params.members if name in job.params.members]
    tuned = sorted(
        {fold for name in names for run in runs_of(job.workspace, name) for fold in run.depends["tuned_folds"]}
    )
    if not tuned:
        return ""
    chose = f"rows of {fold_names(tuned)} took part in choosing hyperparameters, so these means are not honest scores"
    if len(tuned) == job.params.prepare.folds:
        return f"{chose}, and no rows are left for one"
    return f"{chose}; `make predict` computes the honest score, without those rows"


def fold_names(folds: Sequence[ExcludedFolds]) -> str:
    """fold 2; folds 0, 1, 2"""
    return f"{'folds' if len(folds) > 1 else 'fold'} {', '.join(map(str, folds))}"
