"""Augmentations by name: on the host one image at a time, on the device a batch; both repeatable from the step's seed."""

from dataclasses import replace
from functools import partial

import keras
import numpy as np
import pytest
from builders import STILL
from small_engines import TRAIN, pictures

from competition.config.errors import UserError
from competition.config.plugins import NO_PLUGINS, Plugins
from competition.input_pipeline.augment import Augmentation
from competition.input_pipeline.batch_threads import Loading
from competition.input_pipeline.batches import TrainingBatches, TrainingPlan
from competition.input_pipeline.mixup import has_device_part
from competition.input_pipeline.named_augmentations import AUGMENTATIONS, checked_augmentation, is_on_device, on_host
from competition.input_pipeline.random_streams import epoch_key, generator
from competition.training.device import Device
from competition.training.device_augmentation import DeviceAugmentation, augmented, augments_on_device
from competition.training.network_trainer import augmentation_of


def on_batch(augment: dict[str, float], images: np.ndarray, plugins: Plugins, epoch: int = 0) -> np.ndarray:
    """The host augmentations of images whose rows are 0, 1, 2, ..."""
    key, function = epoch_key(3, 0, epoch), on_host(augment, plugins)
    return np.stack([function(image.copy(), partial(generator, key, n, 0)) for n, image in enumerate(images)])


def test_every_augmentation_of_the_project_changes_images_and_keeps_their_range() -> None:
    pixels, _ = pictures()
    for name in AUGMENTATIONS:
        if is_on_device(name, NO_PLUGINS):
            layer = DeviceAugmentation(checked_augmentation(name, NO_PLUGINS), 0.5, seed=1)
            changed = np.asarray(layer(pixels.astype(np.float32), training=True))
        else:
            changed = on_batch({name: 0.5}, pixels, NO_PLUGINS)
            assert changed.dtype == np.uint8
        assert changed.shape == pixels.shape and changed.min() >= 0 and changed.max() <= 255
        assert (changed != pixels).any()


def test_host_augmentations_depend_on_the_row_and_the_epoch_only() -> None:
    def shuffled(image: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(image)

    plugins, (pixels, _) = Plugins(augmentations={"shuffled": shuffled}), pictures()
    same, options = np.stack([pixels[0]] * 4), {"shuffled": 1.0, "greyscale": 0.5}
    first = on_batch(options, same, plugins)
    np.testing.assert_array_equal(first, on_batch(options, same, plugins))
    assert len({image.tobytes() for image in first}) == 4
    assert (on_batch(options, same, plugins, epoch=1) != first).any()
    np.testing.assert_array_equal(on_batch({}, pixels, plugins), pixels)


def test_host_augmentations_reach_the_training_batches() -> None:
    plugins = Plugins(augmentations={"black": lambda image, strength, rng: image * 0})
    pixels, labels = pictures()
    train = replace(TRAIN, augment={"black": 1.0})
    plan = TrainingPlan(np.arange(64), np.eye(3, dtype=np.float32)[labels], np.ones(len(labels), np.float32), 1, 0)
    for options, is_black in ((train, True), (TRAIN, False)):
        images, _, _ = next(iter(TrainingBatches(pixels, 3, 16, augmentation_of(options, plugins), 8).start(plan)))
        assert bool(images.numpy().max() == 0) is is_black


def test_another_shape_or_dtype_from_the_host_is_one_sentence() -> None:
    functions = {"cut": lambda image, strength, rng: image[1:], "half": lambda image, strength, rng: image / 2}
    for name, received in (("cut", r"\(7, 8, 3\) uint8"), ("half", "float64")):
        with pytest.raises(UserError, match=rf"\['{name}'\]: expected \(8, 8, 3\) uint8, received .*{received}"):
            on_batch({name: 1.0}, pictures()[0], Plugins(augmentations=functions))


def test_the_device_augments_in_training_only_and_equally_for_equal_states_of_its_seed() -> None:
    def noisy_twice(images: object, strength: float, seed: object) -> object:
        draws = [keras.random.normal(images.shape, seed=seed) for _ in range(2)]  # type: ignore[attr-defined]
        assert (np.asarray(draws[0]) != np.asarray(draws[1])).any()
        return images + strength * draws[0] + strength * draws[1]  # type: ignore[operator]

    augment = checked_augmentation("noisy", Plugins(augmentations={"noisy": noisy_twice}))
    layer, images = DeviceAugmentation(augment, 5.0, seed=0), np.zeros((2, 8, 8, 3), np.float32)
    np.testing.assert_array_equal(layer(images, training=False), images)
    state = np.asarray(layer.seed_generator.state)
    first, second = (np.asarray(layer(images, training=True)) for _ in range(2))
    assert (first != second).any() and np.asarray(layer.seed_generator.state)[1] == state[1] + 2
    layer.seed_generator.state.assign(state)
    np.testing.assert_array_equal(layer(images, training=True), first)


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
