"""Train fold models of a run, in one process: a member is compiled once, its weights are reset between folds."""

import gc
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds
from competition.config.plugins import active
from competition.config.teachers import ancestors
from competition.files.locks import last_holder
from competition.files.manifest import Manifest, files_intact, is_current, read_manifest
from competition.files.replacement import replace_model, retraining_path
from competition.images.pixels import is_streamed
from competition.prepare.prepared import Prepared
from competition.training.fault_tolerance import stop_signals
from competition.training.memory import available_bytes, memory_warning
from competition.workspace.dependencies import (
    describe_fold,
    fold_model_dependencies,
    fold_names,
    is_nested,
    is_trained,
    model_manifest_path,
    soft_labels_dependencies,
    soft_labels_path,
    teacher_models,
)
from competition.workspace.runs import Run, runs_of
from competition.workspace.scores import result_line
from competition.workspace.soft_labels import load_soft_labels, missing_teacher, save_soft_labels
from competition.workspace.tracking import Tracked, fold_outcome, fold_subject
from pipelines.terminal import hosts
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar
from pipelines.terminal.runner import Computed, InUse, Job, start_backend, track
from pipelines.terminal.selection import selected_folds
from pipelines.terminal.trainer import TrainerInputs, keep_engine, open_scorer, start_device, target_caption

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.input_stall import InputStallDetector
    from competition.training.loop import Events, Trained
    from competition.training.scorer import FoldScorer
    from competition.training.trainer import Trainer

WAIT_SECONDS = 1.0  # between two looks at what another process computes
AUGMENTED_IMAGES = 16  # on the sheet of an augmented batch


def train_run(job: Job, run: Run, at_step: Callable[[], None] = lambda: None) -> None:
    """Train the selected fold models of a run that are not current, or all of them with FORCE=1.

    at_step: called at every step; it may raise an error to end the training, whose complete fold models stay.
    """
    folds: list[ExcludedFolds] = list(selected_folds(job))
    stale = [fold for fold in folds if job.options.force or not is_trained(run, fold)]
    stale = hosts.decided(interrupted_last(run, stale))
    current = [fold for fold in folds if fold not in stale]
    if current:
        again = "; FORCE=1 trains it again" if job.options.fold else ""
        job.echo(f"train {run.title}: {fold_names(current)} current{again}")
    for fold in current if hosts.writes() else ():
        remove_checkpoints(model_manifest_path(run, fold).parent)
    if stale:
        train_models(job, run, stale, at_step)


def interrupted_last(run: Run, folds: list[ExcludedFolds]) -> list[ExcludedFolds]:
    """The folds, last those whose process died: one that crashes each time must not keep the others from being trained."""
    return sorted(folds, key=lambda fold: last_holder(lock_path(run, fold)) is not None)


def lock_path(run: Run, fold: ExcludedFolds) -> Path:
    """Of the lock under which this model is trained, in its place or again."""
    target = model_manifest_path(run, fold)
    again = retraining_path(run.folder, target)
    return (again if again.parent.exists() else target).with_suffix(".lock")


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
            train_models(job, run, missing)


def train_models(job: Job, run: Run, pending: list[ExcludedFolds], at_step: Callable[[], None] = lambda: None) -> None:
    """Train the models in `pending` under a watchdog, and again after a loss of the device.

    pending: the excluded fold of each model, or two for a nested teacher; each is removed when it is complete.
    Raises UserError if the device is lost too often, or with the largest batch that fits if its memory is exhausted.
    """
    start_backend(job)
    from competition.training.fault_tolerance import train_with_retries

    limits = job.params.device
    # A lost host takes the others' device with it, and they cannot open it without that host.
    retries = 0 if hosts.are_joined() else limits.retries
    show = lambda line: job.echo(f"train {run.title}: {line}")  # noqa: E731

    def train(alive: Callable[[], None]) -> None:
        def step() -> None:
            alive()
            at_step()

        train_once(job, run, pending, step)

    train_with_retries(train, limits.hang_seconds, retries, show)


def train_once(job: Job, run: Run, pending: list[ExcludedFolds], alive: Callable[[], None]) -> None:
    """Open the device and train the models in `pending`.  alive: to be called at every step."""
    device = start_device(job)
    from competition.training.memory import is_out_of_memory

    if device.kind == "cpu" and (
        warning := memory_warning(run.title, run.member, device.batches_ahead, available_bytes())
    ):
        job.echo(f"train {warning}")
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
    from competition.training.memory import step_fits, too_large

    classes, targets = len(job.prepared.competition.classes), job.prepared.competition.targets

    def fits(batch: int) -> bool:
        alive()
        answer = step_fits(run.member, classes, device, batch, targets)
        job.echo(f"train {run.title}: a batch of {batch} {'fits' if answer else 'does not fit'}")
        return answer

    job.echo(f"train {run.title}: the memory of the device is exhausted; searching the largest batch that fits")
    return too_large(run.title, run.member, device.replicas, fits)


@dataclass(frozen=True)
class Session:
    """What is open while models of one run are trained in this process."""

    job: Job
    run: Run
    trainer: "FoldScorer"
    stall_detector: "InputStallDetector"
    bar: Bar
    alive: Callable[[], None]  # to be called at every step
    models: int  # that are trained, for the bar


def train_on(device: "Device", job: Job, run: Run, pending: list[ExcludedFolds], alive: Callable[[], None]) -> None:
    """Train the models in `pending` on a device; see train_models."""
    prepared = job.prepared
    from competition.training.input_stall import InputStallDetector
    from competition.training.trainer import Trainer

    member, name = run.member, run.title
    job.echo(
        f"train {name}: run {run.label} on {device.replicas} x {device.kind} ({device.reason}); {fold_names(pending)}"
    )
    for teacher in [teacher for runs in run.teachers.values() for teacher in runs]:
        same_fold = [fold for fold in pending if not is_nested(member, fold)]
        update_soft_labels(job, run, teacher, same_fold, device, alive)
    soft = partial(load_soft_labels, prepared, run) if member.teacher else None
    trainer = open_scorer(job, member, name, device, TrainerInputs(soft_labels=soft, alive=alive))
    if isinstance(trainer, Trainer):
        draw_augmented_batch(prepared, trainer, run, pending)
    if is_streamed(trainer.images.pixels):
        job.echo(
            f"train {name}: {prod(trainer.images.pixels.shape) / 1e9:.1f} GB of decoded images fit neither "
            "cache.ram_gigabytes nor cache.disk_gigabytes (nor the free disk): every epoch decodes them again; a larger limit, "
            "or cache.folder on a larger disk, avoids it"
        )
    with Bar(None, name) as bar:
        share_models(Session(job, run, trainer, InputStallDetector(), bar, alive, len(pending)), pending)
    if isinstance(trainer, Trainer):
        keep_engine(job, run, trainer.engine)


def share_models(session: Session, pending: list[ExcludedFolds]) -> None:
    """Train the models in `pending`, and remove each from it when it is complete, here or by another process.

    Several `make train` in one work folder share the models: each takes a free one, and waits at the end for those that
    the others train. If one of these ends without its model, that is trained here.
    """
    job, run = session.job, session.run
    waited, used = False, InUse("")
    while pending:
        for fold in tuple(pending):
            # One that another process completed meanwhile; hosts that train together see the same.
            if not job.options.force and hosts.decided(is_trained(run, fold)):
                job.echo(f"train {run.title} {describe_fold(fold)}: trained by another process")
                pending.remove(fold)
                continue
            try:
                manifest = train_model(session, fold, session.models - len(pending))
            except InUse as error:
                if hosts.are_joined() or job.options.force:
                    raise
                used = error
            else:
                pending.remove(fold)
                session.bar.clear()
                result = result_line(job.prepared.competition.metric, manifest)
                job.echo(f"train {run.title} {describe_fold(fold)}: {result}")
        if pending:
            if not waited:
                job.echo(f"train {run.title}: waiting for {fold_names(pending)} ({used})")
            waited = True
            session.alive()
            time.sleep(WAIT_SECONDS)


def train_model(session: Session, fold: ExcludedFolds, done: int) -> Manifest:
    """Train one model of a run. A complete earlier model stays in its place until the new one is complete.

    done: models of the session that are complete, for its bar.
    """
    job, run = session.job, session.run
    target, depends, title = model_manifest_path(run, fold), fold_model_dependencies(run, fold), f"train {run.title}"
    previous = read_manifest(target)
    trained_before = previous is not None and files_intact(target, previous)
    path = retraining_path(run.folder, target) if trained_before else target
    if trained_before and job.options.force:
        job.echo(f"{title} {describe_fold(fold)}: made again (FORCE=1)")
    make = partial(train_and_store, session, fold, path.parent, done)
    manifest = job.cached(f"{title} {describe_fold(fold)}", path, depends, make)
    if hosts.writes():
        remove_checkpoints(path.parent)  # after the manifest: a kill before it costs no steps
        if trained_before:
            replace_model(run.folder, target)
    hosts.wait_for_all()
    return manifest


def train_and_store(session: Session, fold: ExcludedFolds, folder: Path, done: int) -> Computed:
    """Train one model and write weights.npz, history.csv and oof.npz to `folder`; its checkpoints stay there.

    Only checkpoints of a model that depends on the same are continued. Returns the files and the facts of the manifest, of
    which `held_out` is in the metric's own sign.
    """
    from competition.training.checkpoint import Checkpoints
    from competition.training.loop import Diverged, Stopped
    from competition.training.scorer import save_fold_model

    job, run, trainer = session.job, session.run, session.trainer

    def report_damage(name: str) -> None:
        job.echo(
            f"train: checkpoint {name} in {display_path(folder)} is damaged and not used; an earlier one is, if it is intact"
        )

    seconds = 60 * job.params.device.checkpoint_minutes
    made_from = digest_of(fold_model_dependencies(run, fold))
    checkpoints = Checkpoints(folder / "checkpoints", made_from, seconds, report_damage, hosts.writes())
    # The score of a nested teacher is not shown.
    score_epochs = job.params.device.score_epochs and isinstance(fold, int)
    events = trainer.train(fold, run.member.train, checkpoints, score_epochs, session.stall_detector)
    received: list[int] = []
    with track(job, fold_subject(job.params, run, describe_fold(fold))) as tracking:
        try:
            with stop_signals(received), closing(events):
                trained = show_events(session, events, fold, done, received, tracking)
            files, result = save_fold_model(trainer, fold, trained, folder)
        except Stopped as stopped:
            job.echo(f"train: {stopped}, its checkpoint is on disk; the same command resumes from it")
            # 130 after Ctrl-C, 143 after SIGTERM. With several hosts, those stop as well that did not receive the signal.
            raise SystemExit(128 + (received or [signal.SIGTERM])[0]) from None
        except Diverged as error:
            raise UserError(f"{display_path(folder)}: {error}") from None
        if tracking.is_active:  # a host that discards what it writes has no files
            tracking.end(fold_outcome(files, result, run.folder / "augmented.png"))
    return files, result


def show_events(
    session: Session, events: "Events", fold: ExcludedFolds, done: int, received: Sequence[int], tracking: Tracked
) -> "Trained":
    """Train by taking the events: the bar, the user's callbacks, trackers, and a stop once a signal is received."""
    from competition.training.input_stall import StepTimes
    from competition.training.loop import EpochDone, StepsDone

    job, trainer, train = session.job, session.trainer, session.run.member.train
    for event in events:
        if isinstance(event, StepsDone):
            session.alive()
            session.bar.text = f"{describe_fold(fold)}, loss {event.loss:.3f}"
            session.bar.update_to(done * event.total + event.step, session.models * event.total)
            tracking.step(event.step, event.loss)
            event.stop = bool(received)
        elif isinstance(event, EpochDone):
            plugins, values = active(), {"member": session.run.title, "fold": fold, "epochs": train.epochs}
            for name, callback in plugins.callbacks.items() if hosts.number() == 0 else ():
                plugins.call(f"CALLBACKS[{name!r}]", callback, values | asdict(event.epoch))
            tracking.epoch(asdict(event.epoch))
        elif isinstance(event, StepTimes):
            session.bar.clear()
            job.echo(f"train {session.run.title}: {event.describe(train, is_streamed(trainer.images.pixels))}")
        else:
            trained = event
    for epoch in trained.history:  # those before a resumption, and of a model that has no epochs
        tracking.epoch(asdict(epoch))
    return trained


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished model; a process killed after it wrote the manifest left them."""
    from competition.training.checkpoint import Checkpoints

    Checkpoints(folder / "checkpoints", "").clear()


def update_soft_labels(
    job: Job, student: Run, teacher: Run, folds: Iterable[ExcludedFolds], device: "Device", alive: Callable[[], None]
) -> None:
    """Predict the soft labels of the teacher's models of these folds, unless they are current.

    Each model predicts the rows that it was trained on. The result is stored beside the model.
    Raises UserError if one of the models is missing or out of date.
    """
    trainer: FoldScorer | None = None  # built for the first fold that needs it
    for fold in folds:
        if not is_trained(teacher, fold):
            raise missing_teacher(student, teacher, fold)
        manifest, depends = soft_labels_path(teacher, fold), soft_labels_dependencies(teacher, fold)
        if hosts.decided(is_current(manifest, depends)):
            continue
        if trainer is None:
            inputs = TrainerInputs(parts=("train",), alive=alive)
            trainer = open_scorer(job, teacher.member, teacher.title, device, inputs)
        make = partial(save_soft_labels, trainer, model_manifest_path(teacher, fold).parent, fold)
        title = f"train {student.title}: soft labels by {teacher.title} {describe_fold(fold)}"
        while True:  # another `make train` in this folder may predict them now
            try:
                job.cached(title, manifest, depends, make)
                break
            except InUse:
                if hosts.are_joined():
                    raise
                alive()
                time.sleep(WAIT_SECONDS)


def draw_augmented_batch(prepared: Prepared, trainer: "Trainer", run: Run, pending: Sequence[ExcludedFolds]) -> None:
    """Draw the start of the first training batch, augmented, once per run: `make report` shows it."""
    from competition.report.pictures import AUGMENTED, contact_sheet

    folds = [fold for fold in pending if isinstance(fold, int)]
    if not hosts.writes() or (run.folder / AUGMENTED).is_file() or not folds:
        return
    pixels, targets, _ = trainer.first_batch(folds[0], run.member.train)
    captions = [target_caption(row, prepared.competition.classes) for row in targets[:AUGMENTED_IMAGES]]
    contact_sheet(pixels[:AUGMENTED_IMAGES], captions, run.folder / AUGMENTED)
