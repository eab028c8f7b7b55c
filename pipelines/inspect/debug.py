"""DEBUG=1: train one fold eagerly on few rows with numeric checks, and draw its first batch."""

from dataclasses import replace
from typing import TYPE_CHECKING

from competition.config.errors import counted
from competition.workspace.dependencies import training_parts
from competition.workspace.studies import tuned_member
from pipelines.execution.open_trainer import TrainerInputs, draw_first_batch, open_network_trainer, start_device
from pipelines.execution.selection import networks_to_train, selected_folds
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

if TYPE_CHECKING:
    from competition.training.device import Device

MAX_EPOCHS = 3  # enough to see whether it learns
SHEET_IMAGES = 48


def run(job: Job) -> None:
    """data/ -> debug/<member>-fold<k>-batch.png; finished fold models are not touched"""
    job.workspace.require(job.path("data", "manifest.json"))
    device = start_device(job)
    # No step is compiled on either backend, so that a debugger can enter every line; the first NaN is an error.
    import keras
    import tensorflow as tf

    tf.data.experimental.enable_debug_mode()
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_disable_jit", True)
        jax.config.update("jax_debug_nans", True)
    else:
        tf.config.run_functions_eagerly(True)
        tf.debugging.enable_check_numerics()
    folds = selected_folds(job) if job.options.fold else [0]
    for name in networks_to_train(job, "debug"):
        for fold in folds:
            debug_fold(job, name, fold, device)


def debug_fold(job: Job, name: str, fold: int, device: "Device") -> None:
    from competition.input_pipeline.labelled_images import sample_rows
    from competition.training.trainer import Epoch, StepsDone

    prepared, rows = job.prepared, job.options.debug_rows
    member = tuned_member(job.workspace, name)
    metric = prepared.competition.metric
    batch_size = min(member.train.batch, rows, int(prepared.index["part"].isin(training_parts(member)).sum()))
    train = replace(member.train, epochs=min(member.train.epochs, MAX_EPOCHS), batch=batch_size)
    member = replace(member, train=train)
    inputs = TrainerInputs(select=lambda images: sample_rows(images, rows, 0))
    trainer = open_network_trainer(job, member, name, device, inputs)
    extent = f"{counted(len(trainer.images.ids), 'row')}, {counted(train.epochs, 'epoch')}"
    job.echo(f"debug {name} fold {fold}: eager, {extent}; its scores mean nothing")
    batch_sheet = job.path("debug", f"{name}-fold{fold}-batch.png")
    draw_first_batch(job, trainer, fold, train, SHEET_IMAGES, batch_sheet)
    job.echo(f"debug: the first training batch, augmented, with its targets: {display_path(batch_sheet)}")
    with Bar(None, name, "steps") as bar:
        for event in trainer.train(fold, train):
            if isinstance(event, StepsDone):
                bar.update_to(event.step, event.total)
            elif isinstance(event, Epoch):
                scores = f"loss {event.loss:.4f}, held-out {metric} {event.held_out:.4f}"
                job.echo(f"debug: epoch {event.epoch}: {scores}")
