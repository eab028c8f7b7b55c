"""Train fold models of a run, in one process: a member is compiled once, its weights are reset between folds.

`train_run` decides which models are stale. `train_models` opens the device, and opens it again after each loss. `share_models`
takes the models that no other process trains. `train_model` writes one of them; `show_events` consumes the events of its training.
"""

import faulthandler
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.digests import digest_of, to_plain
from competition.config.errors import UserError
from competition.config.secrets import without_secrets
from competition.ensemble.stored_predictions import ViewPredictions
from competition.files.locks import InUse, last_holder
from competition.files.manifest import Manifest, read_manifest, sha256
from competition.files.replacement import replace_model, retraining_path, training_path
from competition.input_pipeline.decoded_rows import is_streamed
from competition.training.checkpoint import Checkpoints
from competition.training.fault_tolerance import (
    OUT_OF_MEMORY,
    forget_lost_device,
    is_caused_by,
    reason_of_loss,
    still_alive,
    stop_signals,
)
from competition.training.memory import available_bytes, memory_warning, too_large
from competition.workspace.dependencies import FoldModel, fold_model, fold_names, soft_labels
from competition.workspace.features_and_soft_labels import load_soft_labels, missing_teacher, save_soft_labels
from competition.workspace.runs import Run, write_run_file
from competition.workspace.scores import result_line
from competition.workspace.tracking import Outcome, Subject, Tracked
from pipelines.execution.open_trainer import TrainerInputs, draw_first_batch, open_trainer, start_device
from pipelines.execution.selection import selected_folds
from pipelines.terminal import hosts
from pipelines.terminal.job import Computed, Job, start_backend, track
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.trainer import Events, Trained, Trainer

WAIT_SECONDS = 1.0  # between two looks at what another process computes
AUGMENTED_IMAGES = 16  # on the sheet of an augmented batch
# Weights of all networks whose engines are kept; those of larger ones would take the memory that the next member needs.
KEPT_WEIGHTS = 20_000_000


def train_run(job: Job, run: Run) -> None:
    """Train the selected fold models of a run that are not current, or all of them with FORCE=1."""
    models = [fold_model(run, fold) for fold in selected_folds(job)]
    stale = [model for model in models if job.options.force or not model.is_current]
    # Last those whose process died: one that crashes each time must not keep the others from being trained.
    locks = {model.fold: training_path(run.folder, model.manifest).with_suffix(".lock") for model in stale}
    stale.sort(key=lambda model: bool(last_holder(locks[model.fold])))
    stale = [models[number] for number in job.hosts.decided([models.index(model) for model in stale])]
    current = [model for model in models if model not in stale]
    if current:
        again = "; FORCE=1 trains it again" if job.options.fold else ""
        job.echo(f"train {run.title}: {fold_names([model.fold for model in current])} current{again}")
    for model in current if job.hosts.writes() else ():
        # A process that was killed after it wrote the manifest left them.
        Checkpoints(model.manifest.with_name("checkpoints"), "").clear()
    if stale:
        train_models(job, run, stale)


def train_models(job: Job, run: Run, models: Sequence[FoldModel]) -> None:
    """Train these models of a run, and again after a loss of the device; a process that hangs is ended.

    Raises UserError if the device is lost too often, or with the remedy if its memory is exhausted.
    """
    start_backend(job)
    pending, limits = list(models), job.params.device

    def alive() -> None:
        still_alive(limits.hang_seconds)
        job.at_step()

    for attempt in count(1):
        try:
            still_alive(limits.hang_seconds)
            train_on(start_device(job), job, run, pending, alive)
            return
        except Exception as error:
            if is_caused_by(error, OUT_OF_MEMORY):
                raise too_large(run.title, run.member) from error
            # When a host is lost, the others lose their device too, and they cannot open it again without that host.
            retries = 0 if hosts.are_joined() else limits.retries
            reason = reason_of_loss(error, attempt, retries)
        finally:
            faulthandler.cancel_dump_traceback_later()
        job.echo(f"train {run.title}: the device was lost ({reason}); opening it again, try {attempt} of {retries}")
        forget_lost_device(attempt)


@dataclass(frozen=True)
class Session:
    """What is open while models of one run are trained in this process."""

    job: Job
    run: Run
    trainer: "Trainer"
    bar: Bar
    alive: Callable[[], None]  # to be called at every step
    models: int  # number of models that this process set out to train, for the bar


def train_on(device: "Device", job: Job, run: Run, pending: list[FoldModel], alive: Callable[[], None]) -> None:
    """Open the trainer of a run and train the models in `pending`; each is removed when it is complete.

    alive: to be called at every step.
    """
    from competition.report.pictures import AUGMENTED
    from competition.training.head_trainer import HeadTrainer
    from competition.training.network_trainer import NetworkTrainer

    member, title, folds = run.member, run.title, [model.fold for model in pending]
    if device.kind == "cpu" and (warning := memory_warning(title, member, available_bytes())):
        job.echo(f"train {warning}")
    where = f"{device.replicas} x {device.kind} ({device.reason})"
    job.echo(f"train {title}: run {run.label} on {where}; {fold_names(folds)}")
    soft = labels_of_teachers(device, job, run, folds, alive) if member.teacher else None
    inputs = TrainerInputs(soft_labels=soft, alive=alive, engine=job.engines.pop(run.digest, None))
    trainer = open_trainer(job, member, title, device, inputs)
    if job.hosts.writes():
        write_run_file(run)  # not before: a member whose weights are missing leaves no run
    if is_streamed(trainer.images.pixels):
        job.echo(
            f"train {title}: {prod(trainer.images.pixels.shape) / 1e9:.1f} GB of decoded images fit neither "
            "cache.ram_gigabytes nor cache.disk_gigabytes (nor the free disk): every epoch decodes them again; a larger limit, "
            "or cache.folder on a larger disk, avoids it"
        )
    sheet = run.folder / AUGMENTED  # `make report` shows it
    if isinstance(trainer, NetworkTrainer) and job.hosts.writes() and not sheet.is_file():
        draw_first_batch(job, trainer, folds[0], member.train, AUGMENTED_IMAGES, sheet)
    ahead = trainer.fitting_ahead(folds, member.train) if isinstance(trainer, HeadTrainer) else nullcontext()
    with ahead, Bar(None, title, "steps") as bar:
        share_models(Session(job, run, trainer, bar, alive, len(pending)), pending)
    if isinstance(trainer, NetworkTrainer):
        # For predictions in the same process: compiling it again takes seconds.
        kept = [*job.engines.values(), trainer.engine]
        if sum(engine.model.count_params() for engine in kept) <= KEPT_WEIGHTS:
            job.engines[run.digest] = trainer.engine


def labels_of_teachers(
    device: "Device", job: Job, student: Run, folds: Sequence[int], alive: Callable[[], None]
) -> Mapping[int, ViewPredictions]:
    """Fold -> the soft labels of the training rows of a student's model without it, predicted now unless they are stored.

    Each teacher model predicts the rows that it was trained on. The result is stored beside the model.
    Raises UserError if one of the models is missing or out of date.
    """
    for teacher in [teacher for runs in student.teachers.values() for teacher in runs]:
        trainer: Trainer | None = None  # built for the first fold that needs it
        for fold in folds:
            model, labels = fold_model(teacher, fold), soft_labels(teacher, fold)
            if not model.is_current:
                raise missing_teacher(student, teacher, fold)
            if job.hosts.decided(labels.is_current):
                continue
            if trainer is None:
                inputs = TrainerInputs(parts=("train",), alive=alive)
                trainer = open_trainer(job, teacher.member, teacher.title, device, inputs)
            predict = partial(save_soft_labels, trainer, model.manifest.parent, fold)
            while True:  # another `make train` in this folder may predict them now
                try:
                    name = f"train {student.title}: soft labels by {model.name}"
                    job.cached(name, labels.manifest, labels.depends, predict)
                    break
                except InUse:
                    if hosts.are_joined():
                        raise
                    alive()
                    time.sleep(WAIT_SECONDS)
    return {fold: load_soft_labels(student, fold) for fold in folds}


def share_models(session: Session, pending: list[FoldModel]) -> None:
    """Train the models in `pending`, and remove each from it when it is complete, here or by another process.

    Several `make train` in one work folder share the models: each takes a free one, and waits at the end for those that
    the others train. If one of these ends without its model, that is trained here. With FORCE=1, models that were here at the
    start are trained again, and not those that another process has made since.
    """
    job, title, run_folder = session.job, session.run.title, session.run.folder
    at_start = {model.manifest: read_manifest(model.manifest) for model in pending} if job.options.force else {}
    waited, used = False, ""
    while pending:
        for model in tuple(pending):
            again = retraining_path(run_folder, model.manifest)
            # Complete, and no longer in use: the process that trained it again is about to do the same, or died.
            if again.is_file() and not last_holder(again.with_suffix(".lock")) and job.hosts.writes():
                replace_model(run_folder, model.manifest)
            # One that another process completed meanwhile; hosts that train together see the same.
            is_new = read_manifest(model.manifest) != at_start.get(model.manifest)
            if job.hosts.decided(is_new and model.is_current):
                job.echo(f"train {model.name}: trained by another process")
                pending.remove(model)
                continue
            try:
                manifest = train_model(session, model, session.models - len(pending))
            except InUse as error:
                if hosts.are_joined():
                    raise
                if not used:
                    holder = last_holder(training_path(run_folder, model.manifest).with_suffix(".lock"))
                    other = f"{holder or 'another process'} trains it now"
                    job.echo(f"train {model.name}: {other}, so this process takes the models that are free")
                used = str(error)
            else:
                pending.remove(model)
                session.bar.clear()
                job.echo(f"train {model.name}: {result_line(job.prepared.competition.metric, manifest)}")
        if pending:
            if not waited:
                job.echo(f"train {title}: waiting for {fold_names([model.fold for model in pending])} ({used})")
            waited = True
            session.alive()
            time.sleep(WAIT_SECONDS)


def train_model(session: Session, model: FoldModel, done: int) -> Manifest:
    """Train one model of a run, unless another process has just done it.

    A complete earlier model stays in its place until the new one is complete.

    done: models of the session that are complete, for its bar.
    """
    job, run_folder = session.job, session.run.folder
    path = training_path(run_folder, model.manifest)
    if path != model.manifest and job.options.force:
        job.echo(f"train {model.name}: made again (FORCE=1)")
    # Only checkpoints of a model that depends on the same are continued.
    made_from, seconds = digest_of(model.depends), 60 * job.params.device.checkpoint_minutes
    checkpoints = Checkpoints(path.with_name("checkpoints"), made_from, seconds, job.hosts.writes())
    train = partial(train_and_store, session, model.fold, checkpoints, done)
    manifest = job.cached(f"train {model.name}", path, model.depends, train)
    if job.hosts.writes():
        checkpoints.clear()  # after the manifest: a kill before it costs no steps
        if path != model.manifest:
            replace_model(run_folder, model.manifest)
    job.hosts.wait_for_all()
    return manifest


def train_and_store(session: Session, fold: int, checkpoints: Checkpoints, done: int, folder: Path) -> Computed:
    """Train one model and write weights.npz, history.csv and oof.npz to `folder`.

    Returns the files and the facts of the manifest, of which `held_out` is in the metric's own sign.
    """
    from competition.report.pictures import AUGMENTED
    from competition.training.trainer import Diverged, Stopped, save_fold_model

    job, run, trainer = session.job, session.run, session.trainer
    epochs, scored = run.member.train.epochs, job.params.device.score_epochs
    score_epochs = {ceil(epochs * number / scored) for number in range(1, scored + 1)}
    events = trainer.train(fold, run.member.train, checkpoints, score_epochs)
    received: list[int] = []
    prepare = without_secrets(job.params).prepare
    parameters = {"member": run.name, **to_plain(run.member), "prepare": prepare, "data": run.depends["data"]}
    subject = Subject("fold", run.label, fold_names([fold]).replace(" ", "-"), parameters)
    with track(job, subject) as tracking:
        try:
            # A head takes seconds and has no checkpoint: a signal ends it at once.
            with stop_signals(received) if run.member.head is None else nullcontext(), closing(events):
                trained = show_events(session, events, fold, done, received, tracking)
            files, result = save_fold_model(trainer, fold, trained, folder)
        except Stopped as stopped:
            job.echo(f"train: {stopped}, its checkpoint is on disk; the same command resumes from it")
            # 130 after Ctrl-C, 143 after SIGTERM. With several hosts, those stop as well that did not receive the signal.
            raise SystemExit(128 + (received or [signal.SIGTERM])[0]) from None
        except Diverged as error:
            raise UserError(f"{display_path(folder)}: {error}") from None
        if tracking.runs:  # a host that discards what it writes has no files
            numbers = {key: float(value) for key, value in result.items() if isinstance(value, int | float)}
            texts = {key: value for key, value in result.items() if isinstance(value, str)}
            texts |= {f"sha256/{path.name}": sha256(path) for path in files}
            sheet = run.folder / AUGMENTED
            tracking.end(Outcome(numbers, texts, [sheet] if sheet.is_file() else []))
    return files, result


def show_events(
    session: Session, events: "Events", fold: int, done: int, received: Sequence[int], tracking: Tracked
) -> "Trained":
    """Train by taking the events: the bar, the user's callbacks, trackers, and a stop once a signal is received."""
    from competition.training.trainer import Epoch, StepsDone

    title, epochs = session.run.title, session.run.member.train.epochs
    for event in events:
        if isinstance(event, StepsDone):
            session.alive()
            session.bar.text = f"{fold_names([fold])}, loss {event.loss:.3f}"
            session.bar.update_to(done * event.total + event.step, session.models * event.total)
            tracking.step(event.step, event.loss)
            event.stop = bool(received)
        elif isinstance(event, Epoch):
            plugins, values = session.job.params.plugins, {"member": title, "fold": fold, "epochs": epochs}
            for name, callback in plugins.callbacks.items() if hosts.number() == 0 else ():
                plugins.call(f"CALLBACKS[{name!r}]", callback, values | asdict(event))
            tracking.epoch(asdict(event))
        else:
            trained = event
    for epoch in trained.history:  # those before a resumption, and of a model that has no epochs
        tracking.epoch(asdict(epoch))
    return trained
