"""What the device augments in the step equals what the host augments, from the same random numbers."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from builders import STILL

from competition.images.augment import Augmentation
from competition.images.batch_threads import Loading
from competition.images.batches import TrainingBatches, TrainingPlan
from competition.images.mixup import has_device_part
from competition.training.device import Device
from competition.training.device_augmentation import augmented, augments_on_device

UNCHANGED, N, CLASSES = Augmentation(**STILL), 24, 5
LEFT_TO_DEVICE = [
    {"mixup": 0.4},
    {"brightness": 0.2, "contrast": 0.3, "saturation": 0.4, "erase": 0.5, "mixup": 0.4, "cutmix": 1.0, "flip": "both", "rotate": 9.0},
]  # fmt: skip


def batches_of(options: Augmentation, on_device: bool) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Four batches, as the network sees them."""
    pixels = np.random.default_rng(0).integers(0, 256, (N, 20, 20, 3), dtype=np.uint8)
    targets = np.eye(CLASSES, dtype=np.float32)[np.arange(N) % CLASSES]
    source = TrainingBatches(pixels, CLASSES, 8, options, 20, Loading(2, 2, on_device=on_device))
    iterator = source.start(TrainingPlan(np.arange(N), targets, np.ones(N, np.float32), 1, 0)).as_numpy_iterator()
    batches = []
    for _ in range(4):
        images, targets, weights = next(iterator)
        assert isinstance(images, tuple) is (on_device and has_device_part(options))
        batches.append((*map(keras.ops.convert_to_numpy, augmented(images, targets)), weights))
    return batches


@pytest.mark.parametrize("changes", LEFT_TO_DEVICE, ids=lambda changes: "+".join(changes))
def test_device_and_host_make_the_same_images_and_targets(changes: dict) -> None:
    options = replace(UNCHANGED, **changes)
    for host, device in zip(batches_of(options, False), batches_of(options, True), strict=True):
        assert device[0].dtype == np.uint8 and device[0].shape == host[0].shape
        difference = np.abs(device[0].astype(int) - host[0])
        # OpenCV keeps ten bits of the colour factors, so values near a half may be rounded to the other side, and mixed later.
        assert difference.max() <= 2 and abs((device[0] - host[0].astype(float)).mean()) < 0.1
        assert (difference > 1).mean() < 0.01
        np.testing.assert_allclose(device[1], host[1], atol=1e-6)
        np.testing.assert_array_equal(device[2], host[2])


def test_the_device_augments_where_it_is_faster_and_sees_the_whole_batch() -> None:
    where = [("tpu", 8, "jax"), ("gpu", 1, "tensorflow"), ("cpu", 1, "jax"), ("tpu", 8, "tensorflow")]
    devices = [Device(kind, replicas, None, "", backend) for kind, replicas, backend in where]  # type: ignore[arg-type]
    assert [augments_on_device(device) for device in devices] == [True, True, False, False]
