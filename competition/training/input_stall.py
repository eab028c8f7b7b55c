"""How fast a member trains, and whether its device waits for data."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from competition.config.params import Train
from competition.data.batches import TrainingBatches
from competition.training.engine import Engine
from competition.training.optimizer import StepValues

WORTH_SAYING = 0.2  # share of the time
LONG_ENOUGH = 3.0  # seconds of training, after the first call, before anything is said


@dataclass(frozen=True)
class Waiting:
    """Seconds of one step in training, and of the same step on a batch that is on the spot."""

    step: float
    alone: float

    @property
    def share(self) -> float:
        """Of the time, that the device waits for data."""
        return max(0.0, 1 - self.alone / self.step)

    def told(self, train: Train, streamed: bool) -> str:
        """The share in words, and what helps.  streamed: images are decoded anew every time."""
        if self.share <= WORTH_SAYING:
            return "the device hardly waits for data; more images per second need a faster one, or a smaller member"
        if streamed:
            remedy = (
                "let the decoded images fit: cache.ram_gigabytes, cache.disk_gigabytes, cache.folder on a larger disk"
            )
        elif train.rand_augment:
            remedy = "train.rand_augment: 0 is the greatest help, or a host with more cores"
        else:
            remedy = (
                "fewer augmentations (train.rotate, zoom, shift: 0) or a host with more cores; `make bench` shows both"
            )
        return (
            f"the device waits for data in {self.share:.0%} of the time ({self.step * 1000:.0f} ms a step, "
            f"{self.alone * 1000:.0f} on data that is there); {remedy}"
        )


class InputStallDetector:
    """Listens to a training until it knows; says so once, and only when the device waits for data too long.

    What batches were waited for is counted where they leave the pipeline (TrainingBatches.waited). That is the truth where they
    are used at once; where they go to a device ahead of time, as on several devices and on JAX, it is an upper bound,
    so the step alone is timed as well before anything is said.
    """

    def __init__(self, slow: Callable[[Waiting], None]) -> None:
        self._slow = slow
        self._compiled = self._known = False
        self._steps, self._seconds, self._waited = 0, 0.0, 0.0

    def note(
        self,
        engine: Engine,
        feeder: TrainingBatches,
        rates: np.ndarray,
        values: StepValues,
        seconds: float,
        waited: float,
    ) -> None:
        """After a call of engine.train with `rates`, which took `seconds` and waited for `waited` of them.

        The engine is left as it was, but for its random layers.
        """
        if self._known:
            return
        if not self._compiled:
            self._compiled = True
            return
        self._steps, self._seconds, self._waited = (
            self._steps + len(rates),
            self._seconds + seconds,
            self._waited + waited,
        )
        if self._seconds < LONG_ENOUGH:
            return
        self._known = True
        if self._waited / self._seconds > WORTH_SAYING:
            found = Waiting(self._seconds / self._steps, step_alone(engine, feeder, rates, values))
            if found.share > WORTH_SAYING:
                self._slow(found)


def step_alone(engine: Engine, feeder: TrainingBatches, rates: np.ndarray, values: StepValues) -> float:
    """Seconds of a step on noise that is on the spot, over one call with `rates`; for a step that is compiled already."""
    random = np.random.default_rng(0)
    images, targets, weights = feeder.spec
    noise = random.integers(0, 256, images.shape).astype(np.uint8)
    classes = np.eye(targets.shape[1], dtype=np.float32)[random.integers(0, targets.shape[1], targets.shape[0])]
    there = tf.data.Dataset.from_tensors((noise, classes, np.ones(weights.shape, np.float32))).repeat()
    state = engine.state()
    batches = engine.distributed(there)
    started = time.monotonic()
    engine.train(batches, rates, 0, values)
    seconds = time.monotonic() - started
    engine.load(state)
    return seconds / len(rates)
