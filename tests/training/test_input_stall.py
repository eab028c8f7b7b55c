"""Who waits for whom is measured by the code that trains, and said with what helps."""

import time
from dataclasses import replace
from threading import Lock

import numpy as np
import pytest
from world import CLASSES, member, params, pixels_of

from competition.training import bench
from competition.training.device import open_device
from competition.training.input_stall import Waiting
from competition.training.trainer import Images, Trainer

LABELS = np.arange(48) % CLASSES
TRAIN = member().train


def test_the_share_of_waiting_is_what_a_step_takes_beyond_one_on_data_that_is_there() -> None:
    assert Waiting(step=0.4, alone=0.1).share == pytest.approx(0.75)
    assert Waiting(step=0.1, alone=0.11).share == 0.0


def test_what_helps_is_said_for_where_the_time_goes() -> None:
    slow = Waiting(step=0.4, alone=0.1)
    assert "waits for data in 75%" in slow.told(TRAIN, False) and "fewer augmentations" in slow.told(TRAIN, False)
    assert "cache.ram_gigabytes" in slow.told(TRAIN, True)
    assert "train.rand_augment: 0" in slow.told(replace(TRAIN, rand_augment=9), False)
    assert "hardly waits" in Waiting(step=0.1, alone=0.09).told(TRAIN, False)


class Late:
    """Images that come late and one batch at a time, as from a slow disk."""

    def __init__(self, images: np.ndarray, seconds: float) -> None:
        self._images, self._seconds, self._disk = images, seconds, Lock()
        self.shape = images.shape

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        with self._disk:
            time.sleep(self._seconds)
        return self._images[rows]


@pytest.mark.parametrize("loop", ["auto", "fit"])
def test_a_slow_source_is_found_in_the_input_and_not_in_the_step(monkeypatch, loop) -> None:
    monkeypatch.setattr(bench, "LONG_ENOUGH", 0.5)
    ids, folds = np.array([f"i{n}" for n in range(48)]), np.arange(48) // CLASSES % 2
    images = Images(ids, Late(pixels_of(LABELS), 0.2), LABELS, folds, np.ones(48, bool))
    trainer = Trainer(member(loop=loop), images, CLASSES, "accuracy", open_device(params().device), 8)
    found = bench.parts(trainer, 0)
    # Against each other, not in seconds: a slow machine has none to spare.
    assert found.batch > found.waiting.alone and found.waiting.share > 0.2
