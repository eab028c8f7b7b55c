"""Batches of static shape: shuffled and augmented for training, in order and filled up for prediction.

The order of rows and every random number follow from (seed, fold, epoch) alone, so a resumed run sees what an
uninterrupted one would have seen, and the number of replicas changes nothing.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from competition.data.augment import Augmentation, augment
from competition.data.cache import Pixels

FILLER = -1  # the row number of an image that only fills the last batch


@dataclass(frozen=True)
class TrainingPlan:
    """What one fold model learns from. rows: (n,) int positions in `pixels`; targets: (N, C) float32; weights: (N,) float32."""

    rows: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    seed: int
    fold: int
    balance: np.ndarray | None = (
        None  # (n,) int classes of `rows`: draw every class equally often; None = every row once
    )


def steps_per_epoch(rows: int, batch: int) -> int:
    """Full batches only: a TPU compiles one shape. What an epoch leaves out is another choice of rows every epoch."""
    return max(rows // batch, 1)


def epoch_order(plan: TrainingPlan, batch: int, epoch: int) -> np.ndarray:
    """(steps, batch) row numbers: a permutation of the rows, cut into full batches (repeated when fewer than one).

    Balanced: as many rows, drawn with replacement so that every class comes equally often.
    """
    rng = np.random.default_rng([plan.seed, plan.fold, epoch])
    if plan.balance is None:
        order = rng.permutation(plan.rows)
    else:
        counts = np.bincount(plan.balance)
        chance = 1 / counts[plan.balance]
        order = rng.choice(plan.rows, len(plan.rows), p=chance / chance.sum())
    if len(order) < batch:
        order = np.resize(order, batch)
    steps = len(order) // batch
    return order[: steps * batch].reshape(steps, batch)


class TrainingBatches:
    """One tf.data pipeline for all folds of a member: `start` points it at other rows without building it again."""

    waited: float = 0.0  # seconds for which whoever takes the batches has stood and waited for one

    def __init__(self, pixels: Pixels, classes: int, batch: int, augmentation: Augmentation, size: int) -> None:
        """pixels: (N, H, W, 3) uint8.  size: side of the images it gives, H or less."""
        self._asked = 0.0
        self._cursor: _Cursor | None = None
        height, width = pixels.shape[1:3]

        def look_up(step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
            assert self._cursor is not None, "start() comes first"
            rows, plan, seed = self._cursor.at(int(step))
            return np.asarray(pixels[rows]), plan.targets[rows], plan.weights[rows], seed

        def one(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            kinds = (tf.uint8, tf.float32, tf.float32, tf.int32)
            # A step's number says all: no state. TensorFlow, made deterministic, lets nothing with state work ahead.
            images, targets, weights, seed = tf.numpy_function(look_up, [step], kinds, stateful=False)
            images = tf.ensure_shape(images, (batch, height, width, 3))
            targets, weights = tf.ensure_shape(targets, (batch, classes)), tf.ensure_shape(weights, (batch,))
            images, targets = augment(images, targets, tf.ensure_shape(seed, (2,)), augmentation)
            return _shrunk(images, size), targets, weights

        self._batch = batch
        steps = tf.data.Dataset.counter()
        ahead = steps.map(one, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(4)
        # Inputs of a zip are asked one after the other, so the two clocks enclose the wait for a batch and nothing else.
        clocked = tf.data.Dataset.zip((steps.map(self._clock(False)), ahead, steps.map(self._clock(True))))
        self._batches = clocked.map(lambda _, batch, __: batch)

    @property
    def spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec, tf.TensorSpec]:
        """Shapes and types of a batch: images, targets, weights."""
        return self._batches.element_spec

    def start(self, plan: TrainingPlan, first_step: int = 0) -> tf.data.Dataset:
        """An endless dataset of (images uint8, targets, weights), from global step `first_step` on.

        Iterators of an earlier start must not be read any more.
        """
        self._cursor = _Cursor(plan, self._batch, first_step)
        return self._batches

    def _clock(self, ends: bool) -> Callable[[tf.Tensor], tf.Tensor]:
        def look(step: np.ndarray) -> np.ndarray:
            now = time.monotonic()
            if ends:
                self.waited += now - self._asked
            self._asked = now
            return step

        return lambda step: tf.numpy_function(look, [step], tf.int64, stateful=False)


def _shrunk(images: tf.Tensor, size: int) -> tf.Tensor:
    if images.shape[1] == size:
        return images
    return tf.saturate_cast(tf.round(tf.image.resize(images, (size, size), antialias=True)), tf.uint8)


class _Cursor:
    """Which rows a step takes. One object per start, so that a late thread of the last fold cannot disturb this one."""

    def __init__(self, plan: TrainingPlan, batch: int, first_step: int) -> None:
        self._plan, self._batch, self._first = plan, batch, first_step
        self._epoch = (-1, np.zeros((0, batch), int))

    def at(self, step: int) -> tuple[np.ndarray, TrainingPlan, np.ndarray]:
        plan, step = self._plan, self._first + step
        epoch, within = divmod(step, steps_per_epoch(len(plan.rows), self._batch))
        known = self._epoch  # read once: batches are made by several threads
        if known[0] != epoch:
            known = (epoch, epoch_order(plan, self._batch, epoch))
            self._epoch = known
        seed = np.random.default_rng([plan.seed, plan.fold, step]).integers(0, 2**31, 2).astype(np.int32)
        return known[1][within], plan, seed


def prediction_batches(pixels: Pixels, rows: np.ndarray, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every row of `rows` once, in order, as (rows (B,), images (B, H, W, 3) uint8); the last batch is filled up with FILLER."""
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        filled = np.full(batch, FILLER)
        filled[: len(part)] = part
        images = np.zeros((batch, *pixels.shape[1:]), np.uint8)
        images[: len(part)] = pixels[part]
        yield filled, images


def class_weights(labels: np.ndarray, classes: int, how: str) -> np.ndarray:
    """(N,) float32 with mean 1: rows of rare classes count more. how: none | sqrt | balanced (1 / rows of the class)."""
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[how]
    counts = np.maximum(np.bincount(labels[labels >= 0], minlength=classes), 1)
    weights = np.where(labels >= 0, (1.0 / counts[labels]) ** power, 0.0)
    return (weights / weights[labels >= 0].mean()).astype(np.float32)


def smooth_labels(labels: np.ndarray, classes: int, smoothing: float) -> np.ndarray:
    """(N,) int -> (N, C) float32 targets: 1 - smoothing on the label, the rest spread evenly (Szegedy et al. 2016).

    A label of -1 (unknown) gives a row of zeros.
    """
    targets = np.zeros((len(labels), classes), np.float32)
    known = labels >= 0
    targets[known] = smoothing / classes
    targets[known, labels[known]] += 1 - smoothing
    return targets
