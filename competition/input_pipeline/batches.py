"""Make batches of images, all of one shape: shuffled and augmented for training, in order and padded for prediction.

`TrainingBatches` makes (images (B, H, W, 3) uint8, targets (B, C) float32, weights (B,) float32) of a `TrainingPlan`, by the
threads of `batch_threads.py`; `prediction_batches` makes images (B, H, W, 3) uint8. Row numbers are positions in the member's images
(`labelled_images.Images`).

The order of rows depends on (seed, fold, epoch), and every random number of an image on (seed, fold, epoch, row) only. So
a resumed run gets the same batches as an uninterrupted one, whatever the number of replicas, threads or hosts.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from competition.input_pipeline.augment import Augmentation, augment, draw
from competition.input_pipeline.batch_threads import BatchLoader, Buffers, Loading, cores, thread_pool
from competition.input_pipeline.decoded_rows import Pixels, check_rows, image_reader
from competition.input_pipeline.mixup import COUNT, device_numbers, draw_mix, has_device_part, mix_images
from competition.input_pipeline.named_augmentations import on_host, pipeline_of
from competition.input_pipeline.random_streams import epoch_key, generator

LARGEST_PART = 8  # images; smaller parts keep more threads busy, larger ones cost fewer switches between threads
# Images, targets and weights; with the images the numbers of what is left to the device (`mixup.device_numbers`), if any.
TrainingBatch = tuple[np.ndarray | tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]
RowsBegun = Callable[[int], None]  # called before each batch of predictions with the number of rows in those before it


@dataclass(frozen=True)
class TrainingPlan:
    """The training data of one fold model: n of the member's N rows."""

    rows: np.ndarray  # (n,) int, row numbers 0 .. N - 1
    targets: np.ndarray  # (N, C) float32; zeros for rows that are not trained on
    weights: np.ndarray  # (N,) float32
    seed: int  # of the order and the augmentation
    fold: int  # a number that differs for each fold model of a member
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
    """The training batches of all fold models of a member, as one tf.data pipeline: this host's share of each.

    `start` switches it to the rows of another fold model without building it again.
    """

    def __init__(
        self,
        pixels: Pixels,
        classes: int,
        batch: int,
        augmentation: Augmentation,
        size: int,
        loading: Loading = Loading(),  # noqa: B008  (frozen)
    ) -> None:
        """pixels: (N, H, H, 3) uint8.  batch: images in a global batch.  size: side of the images in a batch."""
        self._batch, self._options, self._size, self._source_shape = batch, augmentation, size, pixels.shape[1:]
        # Ascending positions in the global batch of the images that this host feeds.
        share = np.arange(batch) if loading.share is None else np.sort(loading.share)
        self._is_left_to_device = loading.on_device and has_device_part(augmentation)
        before = (share - 1) % batch
        is_mixed = bool(augmentation.mixup or augmentation.cutmix) and not self._is_left_to_device
        # Positions in the global batch of the images to make: those of the share, and where images are mixed the one before each.
        self._positions = np.union1d(share, before) if is_mixed else share
        self._buffers = Buffers((len(self._positions), size, size, 3))
        # Places among the images that are made of those of the share, and of the one before each.
        self._own = np.searchsorted(self._positions, share)
        self._before = np.searchsorted(self._positions, before) if is_mixed else self._own
        images_per_thread = len(self._positions) * loading.in_memory // (2 * (loading.threads or cores()))
        self._parts = _parts(len(self._positions), max(1, min(LARGEST_PART, images_per_thread)))
        self._read_image = image_reader(pixels)
        pipelines = [pipeline_of(augmentation.albumentations)] if augmentation.albumentations else []
        self._augmentations = [*pipelines, on_host(dict(augmentation.augment), augmentation.plugins)]
        self._pool, self._in_memory = thread_pool(loading.threads), loading.in_memory
        self._loader: BatchLoader[TrainingBatch]  # set by `start`, whose dataset reads it
        self._error: Exception | None = None  # of a batch since `start`

        images: Any = tf.TensorSpec((len(share), size, size, 3), tf.uint8)
        if self._is_left_to_device:
            images = (images, tf.TensorSpec((len(share), COUNT), tf.float32))
        targets, weights = tf.TensorSpec((len(share), classes), tf.float32), tf.TensorSpec((len(share),), tf.float32)
        # Shapes and dtypes of this host's share of a batch: (images, targets, weights), or ((images, numbers), targets, weights).
        self.spec = (images, targets, weights)
        # Neither parallel nor prefetched, which are default optimizations: the loader works ahead, and its limit is that of all
        # batches on the host. A prefetch would ask for batches after the last step. The end of an iterator waits for autotuning,
        # up to a second.
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False
        options.autotune.enabled = False
        # AutoGraph would leave a file of generated code in the temporary folder.
        take_batch = tf.autograph.experimental.do_not_convert(self._take_batch)
        self._batches = tf.data.Dataset.counter().map(take_batch).with_options(options)

    def _take_batch(self, number: tf.Tensor) -> Any:
        """A batch as tensors of `spec`.  number: of the step, from 0 at the start."""
        flat = tf.nest.flatten(self.spec)
        # stateless: a batch depends on its number only.
        parts = tf.numpy_function(self._take_arrays, [number], [spec.dtype for spec in flat], stateful=False)
        parts = [tf.ensure_shape(part, spec.shape) for part, spec in zip(parts, flat, strict=True)]
        return tf.nest.pack_sequence_as(self.spec, parts)

    def _take_arrays(self, number: np.ndarray) -> list[np.ndarray]:
        try:
            return tf.nest.flatten(self._loader.batch(int(number)))
        except Exception as error:
            self._error = error
            raise

    @contextmanager
    def errors_as_raised(self) -> Iterator[None]:
        """Take batches within this block: an exception of a batch leaves it as it was raised.

        The dataset itself raises a TensorFlow error with its text, which is no UserError, MemoryError or OSError.
        """
        try:
            yield
        except tf.errors.OpError:
            if self._error is None:
                raise
            raise self._error from None

    def start(self, plan: TrainingPlan, first_step: int = 0, end: int = sys.maxsize) -> tf.data.Dataset:
        """An endless dataset of (images, targets, weights) from global step `first_step` on, images uint8.

        end: the number of steps; no batch of later ones is made ahead. If augmentations are left to the device, the images are
        a pair with their numbers (`mixup.device_numbers`).

        Iterators of an earlier start must not be read any more.
        """

        # Of this start only, so that a late thread of the previous fold cannot affect it.
        @lru_cache(maxsize=1)
        def rows_of_epoch(epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """(key of an epoch, its order of rows, how often each was drawn before)."""
            order = epoch_order(plan, self._batch, epoch)
            rows = pd.Series(order.ravel())
            drawn_before = rows.groupby(rows, sort=False).cumcount().to_numpy().reshape(order.shape)
            return epoch_key(plan.seed, plan.fold, epoch), order, drawn_before

        per_epoch = steps_per_epoch(len(plan.rows), self._batch)

        def make(number: int) -> TrainingBatch:
            epoch, step = divmod(first_step + number, per_epoch)
            key, order, occurrence = rows_of_epoch(epoch)
            return self._make(plan, key, step, order[step], occurrence[step])

        self._loader, self._error = BatchLoader(make, self._in_memory, end - first_step), None
        return self._batches

    def _make(
        self, plan: TrainingPlan, key: np.ndarray, step: int, batch_rows: np.ndarray, occurrence: np.ndarray
    ) -> TrainingBatch:
        """Make one batch, some images in each thread.

        key: of the epoch.  step: its number in the epoch.  batch_rows: (B,) int.  occurrence: (B,) int, how often the row
        was drawn before in this epoch.
        """
        rows, size, options = batch_rows[self._positions], self._size, self._options
        drawn_rows = list(zip(rows.tolist(), occurrence[self._positions].tolist(), strict=True))
        drawn = draw(key, drawn_rows, self._source_shape[0], size, options)
        mix = draw_mix(drawn, step, size, options)
        on_this_host = replace(drawn, colours=None, erased=None) if self._is_left_to_device else drawn
        images = self._buffers.take()

        def make_images(numbers: range) -> None:
            as_read = np.empty(self._source_shape, np.uint8)
            for n in numbers:
                source = as_read
                self._read_image(drawn_rows[n][0], source)
                for augment_by_name in self._augmentations:
                    source = augment_by_name(source, partial(generator, key, *drawn_rows[n]))
                augment(source, on_this_host, n, images[n])

        list(self._pool.map(make_images, self._parts))  # waits for them
        targets, weights = plan.targets[rows], plan.weights[rows[self._own]]
        if self._is_left_to_device:
            return (images, device_numbers(drawn, mix)), targets, weights
        if mix is None:
            return images, targets, weights
        mixed_targets = mix_images(images, targets, mix, self._own, self._before)
        own = images if len(images) == len(self._own) else images[self._own]
        return own, mixed_targets, weights


def prediction_batches(
    pixels: Pixels, rows: np.ndarray, batch: int, begin: RowsBegun = lambda _: None
) -> Iterator[np.ndarray]:
    """The image of every row of `rows` once, in order, in batches (B, H, W, 3) uint8; black images pad the last one.

    While one batch is used, threads read the next. Its memory is used again when nothing refers to it.
    """
    read, buffers = image_reader(pixels), Buffers((batch, *pixels.shape[1:]))
    wanted = check_rows(rows, pixels.shape[0])

    def make(number: int) -> np.ndarray:
        images, some = buffers.take(), wanted[number * batch : (number + 1) * batch]
        images[len(some) :] = 0

        def read_images(numbers: range) -> None:
            for n in numbers:
                read(some[n], images[n])

        list(thread_pool(0).map(read_images, _parts(len(some), LARGEST_PART)))  # waits for them
        return images

    count = -(-len(wanted) // batch)
    loader = BatchLoader(make, 2, count)
    for number in range(count):
        begin(number * batch)
        yield loader.batch(number)


def _parts(count: int, size: int) -> list[range]:
    """The numbers 0 .. count - 1 in parts of `size`."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


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
