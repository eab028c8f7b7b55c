"""Augmentations depend on the seed only, keep shape and dtype, and do what their names say."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from world import STILL, pixels_of

from competition.data.augment import Augmentation, augment

UNCHANGED = Augmentation(**STILL)
LABELS = np.arange(12) % 3
IMAGES, TARGETS = pixels_of(LABELS), np.eye(3, dtype=np.float32)[LABELS]
EACH = [
    replace(UNCHANGED, **change)
    for change in (
        {"flip": "both"}, {"shift": 0.2}, {"zoom": 0.3}, {"rotate": 30.0}, {"brightness": 0.3}, {"contrast": 0.4},
        {"saturation": 0.8}, {"rand_augment": 8}, {"erase": 1.0}, {"mixup": 0.4}, {"cutmix": 1.0},
    )
]  # fmt: skip
ALL = Augmentation("both", 0.1, 0.1, 9.0, 0.1, 0.1, 0.1, rand_augment=5, erase=0.5, mixup=0.3, cutmix=0.9)


def changed(
    options: Augmentation, seed: tuple[int, int] = (1, 2), images: np.ndarray = IMAGES
) -> tuple[np.ndarray, np.ndarray]:
    augmented = augment(tf.constant(images), tf.constant(TARGETS), tf.constant(seed, tf.int32), options)
    return augmented[0].numpy(), augmented[1].numpy()


def test_nothing_changes_with_every_option_at_zero() -> None:
    images, targets = changed(UNCHANGED)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(targets, TARGETS)


@pytest.mark.parametrize(
    "options", [*EACH, ALL], ids=lambda options: next((k for k, v in vars(options).items() if v not in (0, "none")), "")
)
def test_the_result_depends_on_the_seed_and_keeps_shape_and_dtype(options: Augmentation) -> None:
    (images, targets), (again, again_targets), (other, _) = changed(options), changed(options), changed(options, (3, 4))
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(targets, again_targets)
    assert not np.array_equal(images, other) and not np.array_equal(images, IMAGES)
    assert images.shape == IMAGES.shape and images.dtype == np.uint8
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("flip", ["horizontal", "both"])
@pytest.mark.parametrize("shift", [0.0, 1e-9])  # by indexing and by the affine map
def test_flips_mirror_some_images_and_leave_others_unchanged(flip: str, shift: float) -> None:
    images, _ = changed(replace(UNCHANGED, flip=flip, shift=shift))
    versions = {"plain": IMAGES, "across": IMAGES[:, :, ::-1], "down": IMAGES[:, ::-1], "turned": IMAGES[:, ::-1, ::-1]}
    version_names = [
        next((name for name, version in versions.items() if np.abs(image.astype(int) - version[n]).max() <= 1), "?")
        for n, image in enumerate(images)
    ]
    assert set(version_names) == ({"plain", "across"} if flip == "horizontal" else set(versions))


def test_a_shift_moves_by_no_more_than_its_share() -> None:
    line = np.zeros((12, 16, 16, 3), np.uint8)
    line[:, 8, 8] = 255
    images, _ = changed(replace(UNCHANGED, shift=0.25), images=line)
    weight = images[..., 0].astype(float)
    positions = np.array(
        [[(w * np.arange(16)[:, None]).sum() / w.sum(), (w * np.arange(16)).sum() / w.sum()] for w in weight]
    )
    assert np.abs(positions - 8).max() <= 4.01 and np.abs(positions - 8).max() > 1


def test_erasing_fills_one_grey_rectangle() -> None:
    white = np.full_like(IMAGES, 255)
    images, _ = changed(replace(UNCHANGED, erase=1.0), images=white)
    for image in images[..., 0]:
        rows, columns = np.nonzero((image == 127).any(1))[0], np.nonzero((image == 127).any(0))[0]
        assert (image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] == 127).all()
        assert 0 < (image == 127).mean() < 0.6 and set(np.unique(image)) <= {127, 255}


def test_half_of_the_images_are_erased_with_probability_one_half() -> None:
    white = np.full((12, 16, 16, 3), 255, np.uint8)
    hit = [(changed(replace(UNCHANGED, erase=0.5), (seed, 0), white)[0] == 127).any((1, 2, 3)) for seed in range(20)]
    assert 0.35 < np.mean(hit) < 0.65


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mixing_weights_each_label_by_its_share_of_the_pixels(kind: str) -> None:
    flat = np.broadcast_to((np.arange(12) * 20).astype(np.uint8)[:, None, None, None], IMAGES.shape).copy()
    one_hot = np.eye(12, dtype=np.float32)
    options = replace(UNCHANGED, **{kind: 1.0})
    images, targets = (
        x.numpy() for x in augment(tf.constant(flat), tf.constant(one_hot), tf.constant([1, 2]), options)
    )
    np.testing.assert_allclose(images.mean((1, 2, 3)), targets @ (np.arange(12) * 20), atol=0.6)
    assert (targets > 0).sum(1).max() == 2
