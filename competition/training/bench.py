"""The parts of training, each timed alone and then together, by the code that trains."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from competition.data.batches import steps_per_epoch
from competition.training.input_stall import LONG_ENOUGH, Waiting, step_alone
from competition.training.loop import step_values
from competition.training.trainer import Trainer

BEGINNING = 8  # batches: more than are made ahead, so what is timed is made while it is timed


@dataclass(frozen=True)
class Parts:
    """Seconds of one batch."""

    batch: float  # reading, augmenting and batching it, with nothing learned from it
    waiting: Waiting


def parts(trainer: Trainer, fold: int) -> Parts:
    """Trains a little from the initial weights on every fold but `fold`; what is then in the engine means nothing."""
    train, engine = trainer.member.train, trainer.engine
    feeder, plan = trainer.feeder(train, trainer.member.image_size), trainer.plan(fold, train)
    batches = iter(feeder.start(plan))
    for _ in islice(batches, BEGINNING):
        pass
    batch = seconds_each(batches)
    engine.reset(train.seed)
    there = engine.distributed(feeder.start(plan))
    per_epoch = steps_per_epoch(len(plan.rows), engine.batch)
    rates = np.full(min(train.steps_per_call, per_epoch), train.learning_rate)
    values = step_values(train, per_epoch)

    def calls() -> Iterator[Any]:
        while True:
            yield engine.train(there, rates, 0, values)

    learning = calls()
    for _ in islice(learning, math.ceil(BEGINNING / len(rates))):
        pass
    step = seconds_each(learning) / len(rates)
    return Parts(batch, Waiting(step, step_alone(engine, feeder, rates, values)))


def seconds_each(items: Iterator[Any]) -> float:
    """Of one of the items that are taken in some seconds."""
    started, taken = time.monotonic(), 0
    while time.monotonic() - started < LONG_ENOUGH:
        next(items)
        taken += 1
    return (time.monotonic() - started) / taken
