"""Measure how fast a member is trained and predicted on this machine, for plans and budgets."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from competition.config.params import Member, Params
from competition.ensemble.metrics import METRICS
from competition.ensemble.view_transforms import VIEWS
from competition.preflight.planning import Sizes, Speed
from competition.prepare.targets import SINGLE, Targets

if TYPE_CHECKING:
    from competition.training.device import Device
    from competition.training.engine import Engine
    from competition.training.features import FeatureEngine

STEPS_MEASURED = 12  # per epoch, at most
# Any metric of the kind: scores of random images are not used.
METRIC_OF = {"single": METRICS["accuracy"], "multi": METRICS["multilabel_log_loss"], "regression": METRICS["rmse"]}


def measure_speed(
    member: Member,
    sizes: Sizes,
    device: "Device",
    params: Params,
    views: tuple[str, ...],
    targets: Targets = SINGLE,
) -> "tuple[Speed, Engine]":
    """Measure training and prediction with the real trainer on random images.

    The first epoch compiles; later ones are timed. Two folds: half of the images is trained on, half is scored.
    Returns the speed, and the engine of this member, which a training of it can use without compiling again.
    """
    from competition.input_pipeline.batches import steps_per_epoch
    from competition.input_pipeline.labelled_images import Images
    from competition.training.engines import engine_of
    from competition.training.fold_rows import FoldRows
    from competition.training.network_trainer import NetworkTrainer

    started = time.monotonic()
    batch, size = member.train.batch, member.image_size
    rows = 2 * min(STEPS_MEASURED * batch, max(sizes.train // 2, batch))
    numbers = np.arange(rows)
    pixels = np.random.default_rng(0).integers(0, 256, (rows, size, size, 3), np.uint8)
    label_numbers = sizes.classes if targets.kind == "single" else len(targets.table)
    labels, folds = numbers // 2 % label_numbers, numbers % 2
    images = Images(numbers.astype(str), pixels, labels, folds, np.ones(rows, bool))
    fold_rows = FoldRows(replace(member, teacher=(), external=()), images, sizes.classes, targets)
    engine = engine_of(member, sizes.classes, params.predict.batch, device, params.plugins, targets)
    trainer = NetworkTrainer(fold_rows, METRIC_OF[targets.kind], engine, device, params.plugins)

    schedule = replace(member.train, epochs=1, patience=0, low_resolution_epochs=0.0, freeze_epochs=0)
    trainer.train_to_end(0, schedule, score_epochs=False)
    startup = time.monotonic() - started
    train_rows, held_out_rows = np.flatnonzero(images.folds == 1), np.flatnonzero(images.folds == 0)
    steps, count = steps_per_epoch(len(train_rows), trainer.engine.batch), len(held_out_rows)
    held_out_seconds = timed(trainer.predict, None, images, held_out_rows, ("identity",))
    train_seconds = min(timed(trainer.train_to_end, 0, replace(schedule, epochs=3), False) for _ in range(2))
    step_seconds = max((train_seconds - held_out_seconds) / (3 * steps), 1e-9)
    first, cached = (timed(trainer.predict, None, images, held_out_rows, views) for _ in range(2))
    ready = startup - steps * step_seconds - held_out_seconds
    scored, predicted = held_out_seconds / count, cached / count / len(views)
    return Speed(ready, step_seconds, scored, predicted, max(first - cached, 0.0)), trainer.engine


def compiled_features(member: Member, device: "Device", params: Params) -> tuple["FeatureEngine", float]:
    """(frozen network of a member, compiled by one batch of noise; seconds that it took)"""
    from competition.training.features import feature_engine

    started = time.monotonic()
    engine = feature_engine(member, device, params.predict.batch, params.plugins)
    pass_seconds(engine, member, batches=1)
    return engine, time.monotonic() - started


def pass_seconds(engine: "FeatureEngine", member: Member, batches: int = 3) -> float:
    """Seconds of one image under one view, of random images."""
    from competition.input_pipeline.labelled_images import Images
    from competition.training.features import compute_features

    count = batches * engine.predict_batch
    pixels = np.random.default_rng(0).integers(0, 256, (count, member.image_size, member.image_size, 3), np.uint8)
    unknown = np.full(count, -1)
    images = Images(np.arange(count).astype(str), pixels, unknown, unknown, np.ones(count, bool))
    return timed(compute_features, engine, images, np.arange(count), [VIEWS["identity"]]) / count


def timed(function: Callable[..., object], *arguments: object) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started
