"""Measure the parts of training, alone and together, by the code that trains."""

import math
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import numpy as np

from competition.images.batches import steps_per_epoch
from competition.training.input_stall import StepTimes, seconds_in_memory
from competition.training.trainer import Trainer

MEASURED_SECONDS = 3.0  # of batches, then of training
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
