"""Training batches depend on (seed, fold, step) only; prediction batches hold every row once and in order."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from builders import STILL, numbered

from competition.input_pipeline.augment import Augmentation
from competition.input_pipeline.batch_threads import BatchLoader, Buffers, Loading
from competition.input_pipeline.batches import (
    TrainingBatches,
    TrainingPlan,
    class_weights,
    epoch_order,
    prediction_batches,
    steps_per_epoch,
)
from competition.input_pipeline.decoded_rows import ConcatenatedPixels, PixelFile, StoredPixels, image_reader

N, CLASSES = 23, 3
UNCHANGED = Augmentation(**STILL)


TARGETS = np.eye(CLASSES, dtype=np.float32)[np.arange(N) % CLASSES]
PLAN = TrainingPlan(np.arange(0, N, 2), TARGETS, np.arange(N, dtype=np.float32), seed=5, fold=1)  # 12 rows


def taken(source: TrainingBatches, steps: int) -> list[tuple[np.ndarray, ...]]:
    return [tuple(part.numpy() for part in batch) for batch in islice(source.start(PLAN), steps)]


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 12])
def test_an_epoch_takes_no_row_twice_and_only_rows_of_the_plan(batch: int) -> None:
    order = epoch_order(PLAN, batch, epoch=0)
    assert order.shape == (steps_per_epoch(12, batch), batch)
    assert len(set(order.ravel())) == order.size and set(order.ravel()) <= set(PLAN.rows)
    order = epoch_order(replace(PLAN, rows=np.array([4, 7])), 5, epoch=0)  # fewer rows than a batch are repeated
    assert order.shape == (1, 5) and set(order.ravel()) == {4, 7}
    batches = TrainingBatches(photos(), CLASSES, 4, EVERYTHING, 16).start(replace(PLAN, rows=PLAN.rows[:2]))
    assert len(np.unique(next(iter(batches))[0], axis=0)) == 4  # a row that is drawn twice is augmented differently


def test_balanced_epochs_draw_every_class_equally_often() -> None:
    classes = np.array([0] * 90 + [1] * 9 + [2] * 1)
    plan = replace(PLAN, rows=np.arange(100), balance=classes)
    drawn = np.concatenate([classes[epoch_order(plan, 10, epoch).ravel()] for epoch in range(30)])
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), 1 / 3, atol=0.05)


def test_images_targets_and_weights_of_a_row_stay_together() -> None:
    for images, targets, weights in taken(TrainingBatches(numbered(N, 4), CLASSES, 5, UNCHANGED, 4), 4):
        rows = images[:, 0, 0, 0]
        assert (images == rows[:, None, None, None]).all() and weights.tolist() == rows.tolist()
        np.testing.assert_array_equal(targets, TARGETS[rows])


EVERYTHING = Augmentation("both", 0.1, 0.1, 9.0, 0.1, 0.1, 0.1, 0.5, 0.3, 1.0, crop=0.5)


def photos(side: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (N, side, side, 3), dtype=np.uint8)


def test_the_images_of_a_row_are_the_same_for_any_batch_size_number_of_threads_and_source(tmp_path: Path) -> None:
    unmixed, pixels = replace(EVERYTHING, mixup=0.0, cutmix=0.0), photos()
    file = tmp_path / "images.npy"
    np.save(file, pixels)

    def images_by_row(source: Any, batch: int, loading: Loading) -> dict[int, bytes]:
        batches = TrainingBatches(source, CLASSES, batch, unmixed, 12, loading)
        epoch = taken(batches, steps_per_epoch(12, batch))
        return {int(row): image.tobytes() for images, _, weights in epoch for row, image in zip(weights, images)}

    expected = images_by_row(pixels, 12, Loading(1, 1))
    assert len(expected) == 12
    for source in (PixelFile(file, pixels.shape), ConcatenatedPixels([pixels[:7], PixelFile(file, pixels.shape)])):
        image_reader(source)(3, image := np.empty((16, 16, 3), np.uint8))
        np.testing.assert_array_equal(image, pixels[3])
    for source, batch, loading in ((pixels, 4, Loading(3, 2)), (PixelFile(file, pixels.shape), 6, Loading(2, 3))):
        assert images_by_row(source, batch, loading) == expected


@pytest.mark.parametrize("share", [(3, 4, 5), (0, 1, 4)])
def test_each_host_makes_its_share_of_the_batches_that_one_host_makes(share: tuple[int, ...]) -> None:
    for options in (EVERYTHING, replace(EVERYTHING, mixup=0.0, cutmix=0.0)):
        whole = taken(TrainingBatches(photos(), CLASSES, 6, options, 16), 4)
        part = taken(TrainingBatches(photos(), CLASSES, 6, options, 16, Loading(2, 2, share)), 4)
        for all_images, some_images in zip(whole, part, strict=True):
            for expected, actual in zip(all_images, some_images, strict=True):
                np.testing.assert_array_equal(actual, expected[list(share)])


def test_batches_that_are_kept_do_not_change_while_others_are_made() -> None:
    source = TrainingBatches(photos(64), CLASSES, 4, EVERYTHING, 64, Loading(2, 2))
    kept = [batch[0] for batch in islice(source.start(PLAN), 12)]
    again = [batch[0].numpy().copy() for batch in islice(source.start(PLAN), 12)]
    for first, second in zip(kept, again, strict=True):
        np.testing.assert_array_equal(first.numpy(), second)


def test_batches_that_nobody_will_ask_for_are_not_made() -> None:
    made, begun, released = set(), Semaphore(0), Event()

    def make(number: int) -> int:
        if number in (1, 2, 11):
            begun.release()
            released.wait()
        made.add(number)
        return number

    loader = BatchLoader(make, 3)
    assert loader.batch(0) == 0 and begun.acquire(timeout=60) and begun.acquire(timeout=60)
    assert loader.batch(10) == 10 and begun.acquire(timeout=60)  # 1, 2 and 11 occupy the threads, 12 waits
    asking = Thread(target=loader.batch, args=(20,))
    asking.start()
    while 12 in loader._pending:
        pass
    released.set()
    asking.join()
    assert 20 in made and 12 not in made


class Damaged(StoredPixels):
    shape = (N, 4, 4, 3)

    def read(self, row: int, buffer: np.ndarray) -> None:
        raise MemoryError(f"row {row}")


@pytest.mark.parametrize("iterator", [iter, lambda dataset: dataset.as_numpy_iterator()], ids=["tensors", "arrays"])
def test_a_dataset_raises_what_its_batch_raised_until_it_is_started_again(iterator: Any) -> None:
    source = TrainingBatches(Damaged(), CLASSES, 5, UNCHANGED, 4)
    with pytest.raises(MemoryError, match="row "), source.errors_as_raised():
        next(iterator(source.start(PLAN)))
    source.start(PLAN)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="of the device"), source.errors_as_raised():
        raise tf.errors.ResourceExhaustedError(None, None, "of the device")


def test_memory_is_used_again_when_nothing_made_of_it_is_left() -> None:
    buffers = Buffers((2, 8, 8, 3))
    images = buffers.take()
    address, kept = images.ctypes.data, tf.constant(images)
    part = images[1:, 2].reshape(-1)
    assert address % 64 == 0 and kept.shape == (2, 8, 8, 3)
    del images, kept
    other = buffers.take()
    assert other.ctypes.data != address
    del part
    assert len(buffers._unused) == 1 and buffers.take().ctypes.data == address


@pytest.mark.parametrize("batch", [1, 4, 11, 22])
@pytest.mark.parametrize("count", [1, 11])
def test_in_order_gives_every_row_once_in_order_in_full_batches(count: int, batch: int) -> None:
    rows = np.arange(20, 20 - count, -1)
    batches = list(prediction_batches(numbered(21), rows, batch))
    assert len(batches) == -(-count // batch) and all(len(images) == batch for images in batches)
    images = np.concatenate(batches)
    assert images[:count, 0, 0, 0].tolist() == rows.tolist() and not images[count:].any()
    assert list(prediction_batches(numbered(3), np.array([], int), batch)) == []


def test_class_weights_are_larger_for_rare_classes_and_have_mean_1() -> None:
    labels = np.array([0] * 8 + [1] * 2 + [-1])
    for mode, ratio in (("none", 1), ("sqrt", 2), ("balanced", 4)):
        weights = class_weights(labels, 2, mode)
        assert weights[8] / weights[0] == pytest.approx(ratio)
        assert weights[:10].mean() == pytest.approx(1) and (mode == "none" or weights[10] == 0)
