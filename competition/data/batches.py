"""Batches of static shape: shuffled and augmented for training, in order and padded for prediction.

The order of rows and every random number depend on (seed, fold, epoch) only, so a resumed run gets the same batches as an
uninterrupted one, whatever the number of replicas.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from competition.data.augment import Augmentation, augment
from competition.data.augmentations import on_host
from competition.data.cache import Pixels

FILLER = -1  # row number of a padding image


@dataclass(frozen=True)
class TrainingPlan:
    """The training data of one fold model."""

    rows: np.ndarray  # (n,) int, positions in `pixels`
    targets: np.ndarray  # (N, C) float32
    weights: np.ndarray  # (N,) float32
    seed: int
    fold: int
    balance: np.ndarray | None = None  # (n,) int classes of `rows`, sampled equally often; None: every row once


def steps_per_epoch(rows: int, batch: int) -> int:
    """Number of full batches: a TPU compiles one shape. Each epoch leaves out other rows."""
    return max(rows // batch, 1)


def epoch_order(plan: TrainingPlan, batch: int, epoch: int) -> np.ndarray:
    """Row numbers of each step of an epoch, (steps, batch): a random permutation of the rows, in full batches.

    Fewer rows than a batch are repeated. With plan.balance, as many rows are drawn with replacement, every class equally
    often.
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
    """One tf.data pipeline for all folds of a member: `start` switches it to other rows without building it again."""

    def __init__(self, pixels: Pixels, classes: int, batch: int, augmentation: Augmentation, size: int) -> None:
        """pixels: (N, H, W, 3) uint8.  size: side of the images in a batch, at most H."""
        self._batch = batch
        self._cursor: _Cursor | None = None
        height, width = pixels.shape[1:3]
        augment_on_host = on_host(dict(augmentation.augment))

        def load_step(step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
            assert self._cursor is not None, "start() must be called first"
            rows, plan, seed = self._cursor.at(int(step))
            return augment_on_host(np.asarray(pixels[rows]), seed), plan.targets[rows], plan.weights[rows], seed

        def make_batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            dtypes = (tf.uint8, tf.float32, tf.float32, tf.int32)
            # stateless: a batch depends on its step only. With op determinism, TensorFlow parallelises nothing stateful.
            images, targets, weights, seed = tf.numpy_function(load_step, [step], dtypes, stateful=False)
            images = tf.ensure_shape(images, (batch, height, width, 3))
            targets, weights = tf.ensure_shape(targets, (batch, classes)), tf.ensure_shape(weights, (batch,))
            images, targets = augment(images, targets, tf.ensure_shape(seed, (2,)), augmentation)
            return _downscale(images, size), targets, weights

        steps = tf.data.Dataset.counter()
        batches = steps.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        self._batches = batches.prefetch(4)

    @property
    def spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec, tf.TensorSpec]:
        """Shapes and dtypes of a batch: images, targets, weights."""
        return self._batches.element_spec

    def start(self, plan: TrainingPlan, first_step: int = 0) -> tf.data.Dataset:
        """An endless dataset of (images uint8, targets, weights) from global step `first_step` on.

        Iterators of an earlier start must not be read any more.
        """
        self._cursor = _Cursor(plan, self._batch, first_step)
        return self._batches


def _downscale(images: tf.Tensor, size: int) -> tf.Tensor:
    if images.shape[1] == size:
        return images
    return tf.saturate_cast(tf.round(tf.image.resize(images, (size, size), antialias=True)), tf.uint8)


class _Cursor:
    """The rows of each step. One object per start, so that a late thread of the previous fold cannot affect this one."""

    def __init__(self, plan: TrainingPlan, batch: int, first_step: int) -> None:
        self._plan, self._batch, self._first_step = plan, batch, first_step
        self._order = (-1, np.zeros((0, batch), int))  # (epoch, its order of rows)

    def at(self, step: int) -> tuple[np.ndarray, TrainingPlan, np.ndarray]:
        """(rows (B,), plan, seed (2,) int32 of the augmentation) of the step number `step` since the start."""
        plan, step = self._plan, self._first_step + step
        epoch, step_of_epoch = divmod(step, steps_per_epoch(len(plan.rows), self._batch))
        order = self._order  # read once, because several threads make batches
        if order[0] != epoch:
            self._order = order = (epoch, epoch_order(plan, self._batch, epoch))
        seed = np.random.default_rng([plan.seed, plan.fold, step]).integers(0, 2**31, 2).astype(np.int32)
        return order[1][step_of_epoch], plan, seed


def prediction_batches(pixels: Pixels, rows: np.ndarray, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every row of `rows` once, in order, as (rows (B,), images (B, H, W, 3) uint8); FILLER rows pad the last batch."""
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        padded = np.full(batch, FILLER)
        padded[: len(part)] = part
        images = np.zeros((batch, *pixels.shape[1:]), np.uint8)
        images[: len(part)] = pixels[part]
        yield padded, images


def class_weights(labels: np.ndarray, classes: int, mode: str) -> np.ndarray:
    """(N,) float32 weights of the rows with mean 1, larger for rare classes.

    labels: (N,) int, -1 = unknown.  mode: none | sqrt | balanced (1 / rows of the class).
    """
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[mode]
    counts = np.maximum(np.bincount(labels[labels >= 0], minlength=classes), 1)
    weights = np.where(labels >= 0, (1.0 / counts[labels]) ** power, 0.0)
    return (weights / weights[labels >= 0].mean()).astype(np.float32)


def smooth_labels(labels: np.ndarray, classes: int, smoothing: float) -> np.ndarray:
    """(N,) int labels -> (N, C) float32 targets: `smoothing` spread evenly over the classes, the rest on the label.

    A label of -1 (unknown) gives a row of zeros. Source: Szegedy et al. 2016.
    """
    targets = np.zeros((len(labels), classes), np.float32)
    has_label = labels >= 0
    targets[has_label] = smoothing / classes
    targets[has_label, labels[has_label]] += 1 - smoothing
    return targets
