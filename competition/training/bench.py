"""Measure the parts of training, alone and together, by the code that trains."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import tensorflow as tf

from competition.config.params import Train
from competition.input_pipeline.batches import TrainingBatches, steps_per_epoch
from competition.training.network_trainer import NetworkTrainer

MEASURED_SECONDS = 3.0  # of batches, then of training
WARM_UP = 8  # batches: more than are prefetched, so that the measured batches are made while they are measured
STALL_SHARE = 0.2  # of the time: waiting for data that long has a remedy


@dataclass(frozen=True)
class PartTimes:
    """Seconds of a batch that is read and augmented alone, of a step in training, and of one on a batch in memory."""

    batch: float
    step: float
    step_in_memory: float

    @property
    def waiting_share(self) -> float:
        """Share of the time in which the device waits for data."""
        return max(0.0, 1 - self.step_in_memory / self.step)

    def describe(self, train: Train, streamed: bool) -> str:
        """The share in words, and the remedy.  streamed: images are decoded each time they are read."""
        if self.waiting_share <= STALL_SHARE:
            return "the device hardly waits for data; more images per second need a faster device or a smaller member"
        remedy = "use a host with more cores (device.threads: 0 uses all of them), or a faster disk"
        if streamed:
            remedy = "make the decoded images fit (cache.ram_gigabytes, cache.disk_gigabytes, cache.folder)"
        elif train.rotate or train.zoom or train.shift:
            remedy = "use a host with more cores, or train.crop in place of rotate, zoom and shift, which take most of the time"
        return (
            f"the device waits for data in {self.waiting_share:.0%} of the time ({self.step * 1000:.0f} ms per step, "
            f"{self.step_in_memory * 1000:.0f} ms on a batch in memory); {remedy}"
        )


def time_parts(trainer: NetworkTrainer, fold: int) -> PartTimes:
    """Train for some seconds from the initial weights on every fold but `fold`. The weights are meaningless afterwards.

    The input pipeline itself is not timed: tf.data reorders and overlaps its stages, so clocks in it measure nothing real.
    """
    train, engine = trainer.member.train, trainer.engine
    source, plan = trainer.training_batches(train, train.epochs - 1), trainer.fold_rows.plan(fold, train)
    per_epoch = steps_per_epoch(len(plan.rows), engine.batch)
    rates = np.full(min(train.steps_per_call, per_epoch), train.learning_rate)
    step_seconds = []
    with source.errors_as_raised():
        batches = iter(source.start(plan))
        for _ in islice(batches, WARM_UP):
            pass
        batch_seconds = seconds_per_item(batches)
        engine.reset(train.seed)
        for dataset in (source.start(plan), noise_like(source)):
            distributed = engine.distributed(dataset)
            calls = (engine.take_steps(distributed, rates, 0, train, per_epoch) for _ in count())
            for _ in islice(calls, math.ceil(WARM_UP / len(rates))):
                pass
            step_seconds.append(seconds_per_item(calls) / len(rates))
    return PartTimes(batch_seconds, *step_seconds)


def noise_like(source: TrainingBatches) -> tf.data.Dataset:
    """One batch of noise in memory again and again, with the shapes and dtypes of these batches."""
    random = np.random.default_rng(0)
    images, targets, weights = source.spec
    pixels, *numbers = images if isinstance(images, tuple) else (images,)
    noise = random.integers(0, 256, pixels.shape).astype(np.uint8)
    if numbers:  # of the augmentations on the device, which take the same time for any numbers
        noise = (noise, np.zeros(numbers[0].shape, np.float32))
    classes = np.eye(targets.shape[1], dtype=np.float32)[random.integers(0, targets.shape[1], targets.shape[0])]
    return tf.data.Dataset.from_tensors((noise, classes, np.ones(weights.shape, np.float32))).repeat()


def seconds_per_item(items: Iterator[Any]) -> float:
    """Mean time of taking one item, over some seconds."""
    started, taken = time.monotonic(), 0
    while time.monotonic() - started < MEASURED_SECONDS:
        next(items)
        taken += 1
    return (time.monotonic() - started) / taken
