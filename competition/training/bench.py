"""Measure the parts of training, alone and together, and the views of prediction, by the code that trains and predicts."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from competition.ensemble.view_transforms import get_views
from competition.images.batches import steps_per_epoch
from competition.training.engine import Engine
from competition.training.input_stall import StepTimes, seconds_in_memory
from competition.training.trainer import Trainer

MEASURED_SECONDS = 3.0  # of batches, then of training
REPEATS = 3  # of the transform of a view
WARM_UP = 8  # batches: more than are prefetched, so that the measured batches are made while they are measured


def time_parts(trainer: Trainer, fold: int) -> tuple[float, StepTimes]:
    """(seconds of reading, augmenting and batching one batch without training on it, seconds of its step).

    Trains for some seconds from the initial weights on every fold but `fold`. The weights are meaningless afterwards.
    """
    train, engine = trainer.member.train, trainer.engine
    source, plan = trainer.training_batches(train, trainer.member.training_size), trainer.rows.plan(fold, train)
    batches = iter(source.start(plan))
    for _ in islice(batches, WARM_UP):
        pass
    batch_seconds = seconds_per_item(batches)
    engine.reset(train.seed)
    distributed = engine.distributed(source.start(plan))
    per_epoch = steps_per_epoch(len(plan.rows), engine.batch)
    rates = np.full(min(train.steps_per_call, per_epoch), train.learning_rate)
    training = (engine.train(distributed, rates, 0, train, per_epoch) for _ in count())
    for _ in islice(training, math.ceil(WARM_UP / len(rates))):
        pass
    step_seconds = seconds_per_item(training) / len(rates)
    return batch_seconds, StepTimes(step_seconds, seconds_in_memory(engine, source, rates, train, per_epoch))


def seconds_per_item(items: Iterator[Any]) -> float:
    """Mean time of taking one item, over some seconds."""
    started, taken = time.monotonic(), 0
    while time.monotonic() - started < MEASURED_SECONDS:
        next(items)
        taken += 1
    return (time.monotonic() - started) / taken


def transform_seconds(engine: Engine, names: Sequence[str], size: int) -> dict[str, float]:
    """View -> seconds in which the engine's devices transform one prediction batch of (size, size, 3) images.

    By the compiled program that prediction uses, on all devices, after a warm-up; the best of REPEATS.
    """
    images = np.random.default_rng(0).integers(0, 256, (engine.predict_batch, size, size, 3)).astype(np.uint8)
    return {
        name: min([engine.view_seconds(view, images) for _ in range(1 + REPEATS)][1:])
        for name, view in zip(names, get_views(names), strict=True)
    }


def seconds_per_1000(seconds: float, images: int, transforms: Mapping[str, float], batch: int) -> dict[str, float]:
    """View -> seconds for 1,000 images by one fold model; the sum equals the measured time.

    seconds: of one warm pass of all views over `images` images, padding included.
    transforms: result of `transform_seconds` for batches of `batch` images.
    """
    transform = {name: 1000 / batch * batch_seconds for name, batch_seconds in transforms.items()}
    total = 1000 / images * seconds
    network = max(total - sum(transform.values()), 0.0) / len(transform)
    scale = total / sum(network + own for own in transform.values())
    return {name: float(f"{scale * (network + own):.4g}") for name, own in transform.items()}
