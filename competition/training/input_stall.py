"""Detect a device that waits for data, by comparing steps in training with the same step on a batch in memory."""

import time
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from competition.config.params import Train
from competition.images.batches import TrainingBatches
from competition.training.engine import Engine

STALL_SHARE = 0.2  # share of the time; a smaller one is not reported
# Seconds of steps to measure, after the first call, which compiles. The comparison takes one call more, which a training of
# less than a minute would notice and gain nothing from.
MEASURED_SECONDS = 60.0


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step in training, and of the same step on a batch that is already in memory."""

    step: float
    in_memory: float

    @property
    def share(self) -> float:
        """Share of the time in which the device waits for data."""
        return max(0.0, 1 - self.in_memory / self.step)

    def describe(self, train: Train, streamed: bool) -> str:
        """The share in words, and the remedy.  streamed: images are decoded each time they are read."""
        if self.share <= STALL_SHARE:
            return "the device hardly waits for data; more images per second need a faster device or a smaller member"
        if streamed:
            remedy = "make the decoded images fit (cache.ram_gigabytes, cache.disk_gigabytes, cache.folder)"
        elif train.rotate or train.zoom or train.shift:
            remedy = (
                "use a host with more cores, or train.crop in place of rotate, zoom and shift, which take most of the time; "
                "`make bench` measures it"
            )
        else:
            remedy = "use a host with more cores (device.threads: 0 uses all of them), or a faster disk; `make bench` measures both"
        return (
            f"the device waits for data in {self.share:.0%} of the time ({self.step * 1000:.0f} ms per step, "
            f"{self.in_memory * 1000:.0f} ms on a batch in memory); {remedy}"
        )


@dataclass
class InputStallDetector:
    """Measures some seconds of training once: does the device wait for data too long?

    The input pipeline itself is not timed: tf.data reorders and overlaps its stages, so clocks in it measure nothing real.
    """

    _has_compiled: bool = False
    _is_done: bool = False
    _steps: int = 0
    _seconds: float = 0.0

    def record(
        self, engine: Engine, source: TrainingBatches, rates: np.ndarray, train: Train, per_epoch: int, seconds: float
    ) -> StepTimes | None:
        """Record a call of engine.train with `rates` that took `seconds`. Return the times once if the device waits.

        The engine's state is unchanged afterwards, except for its random layers.
        """
        if self._is_done:
            return None
        if not self._has_compiled:
            self._has_compiled = True
            return None
        self._steps, self._seconds = self._steps + len(rates), self._seconds + seconds
        # Measuring takes steps, which all hosts must take together, but their clocks differ: one that is ready decides for all.
        if not any(engine.all_gather(self._seconds >= MEASURED_SECONDS)):
            return None
        self._is_done = True
        in_memory = seconds_in_memory(engine, source, rates, train, per_epoch)
        waiting = StepTimes(self._seconds / self._steps, in_memory)
        return waiting if waiting.share > STALL_SHARE else None


def seconds_in_memory(
    engine: Engine, source: TrainingBatches, rates: np.ndarray, train: Train, per_epoch: int
) -> float:
    """Seconds of one step on a batch of noise in memory, averaged over one call with `rates`.

    The step must be compiled already. The engine's state is restored, except for its random layers.
    """
    random = np.random.default_rng(0)
    images, targets, weights = source.spec
    pixels, *numbers = images if isinstance(images, tuple) else (images,)
    noise = random.integers(0, 256, pixels.shape).astype(np.uint8)
    if numbers:  # of the augmentations on the device, which take the same time for any numbers
        noise = (noise, np.zeros(numbers[0].shape, np.float32))
    classes = np.eye(targets.shape[1], dtype=np.float32)[random.integers(0, targets.shape[1], targets.shape[0])]
    dataset = tf.data.Dataset.from_tensors((noise, classes, np.ones(weights.shape, np.float32))).repeat()
    state = engine.state()
    batches = engine.distributed(dataset)
    started = time.monotonic()
    engine.train(batches, rates, 0, train, per_epoch)
    seconds = time.monotonic() - started
    engine.load(state)
    return seconds / len(rates)
