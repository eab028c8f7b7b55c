"""DEBUG=1: train one fold eagerly on few rows with numeric checks, and draw what goes in and what comes out wrong."""

from dataclasses import replace

import numpy as np

from competition.artifacts.dependencies import member_with_tuned_values, training_parts
from competition.data.prepared import load_prepared
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, image_cache, selected_folds, selected_members

EPOCHS = 3  # at most: enough to see whether it learns
SHOWN = 48  # images on a sheet


def run(job: Job) -> None:
    """data/ -> debug/<member>-fold<k>-{batch,worst}.png; finished fold models are not touched"""
    job.require(job.path("data", "manifest.json"), "download")
    start_backend(job)
    eagerly()
    folds = selected_folds(job) if job.options.fold else [0]
    for name in selected_members(job):
        for fold in folds:
            look(job, name, fold)


def eagerly() -> None:
    """No compiled step on either backend, so that every line can be stepped into; a NaN ends where it arises."""
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


def look(job: Job, name: str, fold: int) -> None:
    from competition.report.sheets import contact_sheet
    from competition.training.device import open_device
    from competition.training.trainer import Trainer, load_images, sample_rows

    prepared, params = load_prepared(job.path("data")), job.params
    member, _ = member_with_tuned_values(job.work, params, name, job.overrides)
    classes = prepared.competition.classes
    images = sample_rows(
        load_images(
            prepared, training_parts(member), member.image_size, params.prepare.fit, image_cache(job), lambda *_: None
        ),
        job.options.debug_rows,
        0,
    )
    train = replace(
        member.train, epochs=min(member.train.epochs, EPOCHS), batch=min(member.train.batch, len(images.ids))
    )
    member = replace(member, train=train)
    trainer = Trainer(
        member,
        images,
        len(classes),
        prepared.competition.metric,
        open_device(params.device, job.path("cache", "compiled")),
        params.predict.batch,
    )
    job.echo(f"debug {name} fold {fold}: eager, {len(images.ids)} rows, {train.epochs} epochs; no result of it counts")
    pixels, targets, _ = trainer.first_batch(fold, train)
    best = [f"{classes[t.argmax()]} {t.max():.2f}" for t in targets]
    batch = job.path("debug", f"{name}-fold{fold}-batch.png")
    contact_sheet(pixels[:SHOWN], best[:SHOWN], batch)
    job.echo(f"debug: the first training batch, augmented, with its targets: {display_path(batch)}")
    with progress_bar(None, name) as bar:
        trained = trainer.train(fold, train, None, lambda done, of, text: bar.update_to(done, of), lambda: False)
    for epoch in trained.history:
        job.echo(
            f"debug: epoch {epoch.epoch}: loss {epoch.loss:.4f}, held-out {prepared.competition.metric} {epoch.held_out:.4f}"
        )
    rows = np.flatnonzero((images.folds == fold) & images.readable)
    probs = trainer.predict(trainer.engine.weights(), images, rows, ["identity"]).view("identity")
    own = probs[np.arange(len(rows)), images.labels[rows]]
    worst = np.argsort(own, kind="stable")[:SHOWN]
    captions = [
        f"{images.ids[rows[n]]}\nis {classes[images.labels[rows[n]]]} {own[n]:.2f}\nsaid {classes[probs[n].argmax()]} {probs[n].max():.2f}"
        for n in worst
    ]
    sheet = job.path("debug", f"{name}-fold{fold}-worst.png")
    contact_sheet(images.pixels[rows[worst]], captions, sheet)
    job.echo(f"debug: the worst predicted held-out images: {display_path(sheet)}")


if __name__ == "__main__":
    main("debug")
