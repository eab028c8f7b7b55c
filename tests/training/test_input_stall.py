"""Whether the device waits for data is measured by the code that trains, and reported with a remedy."""

import time
from threading import Lock

import numpy as np
from builders import CLASSES, member, params, pixels_of

from competition.images.labelled_images import Images
from competition.training import input_stall
from competition.training.device import open_device
from competition.training.fold_rows import FoldRows
from competition.training.input_stall import InputStallDetector, StepTimes
from competition.training.trainer import Trainer

LABELS = np.arange(48) % CLASSES


class SlowPixels:
    """Images read slowly and one after the other, as from a slow disk."""

    def __init__(self, images: np.ndarray, seconds: float) -> None:
        self._images, self._seconds, self._disk = images, seconds, Lock()
        self.shape = images.shape

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        with self._disk:
            time.sleep(self._seconds)
        return self._images[rows]


def trainer_on(pixels: np.ndarray | SlowPixels, **train: object) -> Trainer:
    ids, folds = np.array([f"i{n}" for n in range(48)]), np.arange(48) // CLASSES % 2
    images = Images(ids, pixels, LABELS, folds, np.ones(48, bool))
    return Trainer(FoldRows(member(**train), images, CLASSES), "accuracy", open_device(params().device), 8)


def test_a_training_that_waits_for_data_is_reported_once_and_ends_with_the_same_weights(monkeypatch) -> None:
    monkeypatch.setattr(input_stall, "MEASURED_SECONDS", 0.5)
    options = {"epochs": 5, "steps_per_call": 1, "dropout": 0.3}
    slow, fast = trainer_on(SlowPixels(pixels_of(LABELS), 0.03), **options), trainer_on(pixels_of(LABELS), **options)
    events = list(slow.train(0, slow.member.train, None, False, InputStallDetector()))
    reports = [event for event in events if isinstance(event, StepTimes)]
    fast.train_to_end(0, fast.member.train, False)
    assert len(reports) == 1 and reports[0].share > 0.2
    for name, value in fast.engine.state().items():
        np.testing.assert_array_equal(slow.engine.state()[name], value, err_msg=name)
