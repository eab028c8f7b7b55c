"""Augmentations depend on (seed, fold, epoch, row) only, keep shape and dtype, and have the documented distribution."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
from builders import STILL, numbered, pixels_of
from scipy.ndimage import affine_transform

from competition.input_pipeline.augment import ASPECT, Augmentation, augment, change_colour, crop_boxes, draw
from competition.input_pipeline.mixup import Mix, draw_mix, mix_images
from competition.input_pipeline.random_streams import epoch_key

UNCHANGED = Augmentation(**STILL)
IMAGES = pixels_of(np.arange(12) % 3)
KEY, ROWS = epoch_key(7, 0, 0), [(row, 0) for row in range(4000)]
ALL = Augmentation("both", 0.1, 0.1, 9.0, 0.1, 0.1, 0.1, 0.5, 0.0, 0.0, crop=0.5)


def augmented(drawn, options: Augmentation, images: np.ndarray = IMAGES, size: int = 0) -> np.ndarray:
    size = size or images.shape[1]
    out = np.empty((len(images), size, size, 3), np.uint8)
    for n, image in enumerate(images):
        augment(image, drawn, n, out[n])
    return out


def changed(options: Augmentation, key: np.ndarray = KEY, images: np.ndarray = IMAGES, size: int = 0) -> np.ndarray:
    side = images.shape[1]
    return augmented(draw(key, ROWS[: len(images)], side, size or side, options), options, images, size)


def test_each_option_changes_images_by_the_epoch_and_leaves_the_source_as_it_is() -> None:
    np.testing.assert_array_equal(changed(UNCHANGED), IMAGES)
    source = IMAGES.copy()
    numbers = {"shift": 0.2, "zoom": 0.3, "rotate": 30.0, "brightness": 0.3, "contrast": 0.4, "saturation": 0.8}
    for name, value in {**numbers, "flip": "both", "erase": 1.0, "crop": 0.3}.items():
        options = replace(UNCHANGED, **{name: value})
        images = changed(options, images=source)
        np.testing.assert_array_equal(source, IMAGES)
        np.testing.assert_array_equal(images, changed(options))
        assert not np.array_equal(images, changed(options, epoch_key(7, 0, 1))) and not np.array_equal(images, IMAGES)


def test_a_row_that_is_drawn_twice_in_an_epoch_is_augmented_differently() -> None:
    once, twice = (augmented(draw(KEY, [(3, n)], 16, 16, ALL), ALL, IMAGES[3:4]) for n in (0, 1))
    assert not np.array_equal(once, twice)


def test_every_number_is_uniform_in_its_documented_range() -> None:
    options = replace(ALL, flip="both", shift=0.1, zoom=0.2, rotate=30.0, brightness=0.3, contrast=0.4, saturation=0.5)
    drawn = draw(KEY, ROWS, 64, 64, options)
    assert drawn.maps is not None and drawn.colours is not None
    signs = np.where(drawn.flips, -1.0, 1.0)
    linear = drawn.maps[:, :, :2] * signs[:, :, None]
    angle, scale = np.rad2deg(np.arctan2(linear[:, 1, 0], linear[:, 0, 0])), np.hypot(linear[:, 0, 0], linear[:, 1, 0])
    moved = drawn.maps @ [31.5, 31.5, 1] - 31.5  # of the centre
    columns = [angle / 30, (scale - 1) / 0.2, *moved.T / 6.4, drawn.colours[:, 0] / (255 * 0.3)]
    columns += [(drawn.colours[:, 1] - 1) / 0.4, (drawn.colours[:, 2] - 1) / 0.5]
    for column in columns:
        assert np.abs(np.histogram(column, 8, (-1, 1))[0] / 500 - 1).max() < 0.25  # 5 standard deviations
    correlations = np.corrcoef([*columns, *drawn.flips.T])
    assert np.abs(correlations - np.eye(9)).max() < 0.09
    assert np.abs(drawn.flips.mean(0) - 0.5).max() < 0.04


def test_the_affine_map_interpolates_linearly_mirrors_at_the_edges_and_rounds() -> None:
    options = replace(UNCHANGED, flip="both", shift=0.2, zoom=0.3, rotate=40.0)
    images = np.random.default_rng(0).integers(0, 256, (12, 48, 48, 3), dtype=np.uint8)
    drawn = draw(KEY, ROWS[:12], 48, 48, options)
    assert drawn.maps is not None
    # SciPy's coordinates are (y, x), ours (x, y).
    expected = np.empty(images.shape)
    for n, channel in np.ndindex(12, 3):
        linear, offset = drawn.maps[n, ::-1, 1::-1], drawn.maps[n, ::-1, 2]
        pixels = images[n, ..., channel].astype(float)
        expected[n, ..., channel] = affine_transform(pixels, linear, offset, order=1, mode="reflect")
    error = augmented(drawn, options, images) - expected
    # OpenCV before 5 knows 32 positions between two pixels, so a pixel of noise may be off by 255 / 64 and rounding.
    assert np.abs(error).max() < 4.5 and abs(error.mean()) < 0.02
    constant = np.full((12, 48, 48, 3), 100, np.uint8)
    np.testing.assert_array_equal(augmented(drawn, options, constant), constant)


@pytest.mark.parametrize("shift", [0.0, 1e-9])  # by mirroring and by the affine map
@pytest.mark.parametrize("flip", ["horizontal", "both"])
def test_flips_mirror_some_images_and_leave_others_unchanged(flip: str, shift: float) -> None:
    images = changed(replace(UNCHANGED, flip=flip, shift=shift)).astype(int)
    mirrored = (IMAGES, IMAGES[:, :, ::-1], IMAGES[:, ::-1], IMAGES[:, ::-1, ::-1])
    differences = np.array([np.abs(images - version).max((1, 2, 3)) for version in mirrored])
    assert differences.min(0).max() <= 1
    assert set(differences.argmin(0)) == ({0, 1} if flip == "horizontal" else {0, 1, 2, 3})


def test_colours_change_as_brightness_contrast_and_saturation_do_one_after_the_other() -> None:
    for added, contrast, saturation in ((20.0, 1.0, 1.0), (-12.0, 0.7, 1.0), (9.0, 1.3, 0.5), (0.0, 1.0, 1.6)):
        errors = []
        for image in IMAGES:
            pixels = image + added
            pixels = pixels.mean() + (pixels - pixels.mean()) * contrast
            grey = pixels.mean(2, keepdims=True)
            expected = np.clip(grey + (pixels - grey) * saturation, 0, 255)
            out = np.empty_like(image)
            change_colour(image, (added, contrast, saturation), out)
            errors.append(out - expected)
        # OpenCV keeps ten bits of the factors: at most 0.4 grey levels beside the rounding, without a bias.
        assert np.abs(errors).max() < 1.0 and abs(np.mean(errors)) < 0.06


def test_erasing_fills_one_grey_rectangle_of_the_documented_size() -> None:
    white = np.full((300, 32, 32, 3), 255, np.uint8)
    is_grey = changed(replace(UNCHANGED, erase=0.5), images=white)[..., 0] == 127
    assert 0.4 < is_grey.any((1, 2)).mean() < 0.6
    for image in is_grey[is_grey.any((1, 2))]:
        rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
        assert image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all() and image.mean() < 0.4


def test_random_crops_have_the_area_and_aspect_ratio_of_random_resized_crop() -> None:
    numbers = np.random.default_rng(0).random((3000, 40))
    top, bottom, left, right = crop_boxes(numbers, 100, 0.25).T
    height, width = bottom - top, right - left
    assert (top >= 0).all() and (left >= 0).all() and (bottom <= 100).all() and (right <= 100).all()
    area, ratio = height * width / 1e4, np.log(width / height) / log(ASPECT)
    assert area.min() > 0.23 and np.abs(ratio).max() < 1.05
    # Uniform where every aspect ratio fits: below 3/4 of the area.
    small = area[area < 0.75]
    assert np.abs(np.histogram(small, 5, (0.25, 0.75))[0] / (len(small) / 5) - 1).max() < 0.2
    shift = top[height < 60] / (100 - height[height < 60])
    assert abs(shift.mean() - 0.5) < 0.03 and shift.min() < 0.05 and shift.max() > 0.95
    assert (crop_boxes(np.full((1, 40), 0.999), 100, 0.99) == [0, 100, 0, 100]).all()  # no try fits


# Mixup and CutMix mix each image with the one before it, and its targets by the share of the pixels.
B, SIDE = 12, 16
FLAT = 20 * numbered(B, SIDE)
OWN, BEFORE = np.arange(B), (np.arange(B) - 1) % B


def mix_of(step: int = 0, **options: float) -> Mix:
    augmentation = replace(UNCHANGED, **options)
    mix = draw_mix(draw(epoch_key(1, 2, 3), ROWS[:B], SIDE, SIDE, augmentation), step, SIDE, augmentation)
    assert mix is not None
    return mix


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mixing_weights_each_label_by_its_share_of_the_pixels(kind: str) -> None:
    images, mix = FLAT.copy(), mix_of(**{kind: 1.0})
    targets = mix_images(images, np.eye(B, dtype=np.float32), mix, OWN, BEFORE)
    np.testing.assert_allclose(images.mean((1, 2, 3)), targets @ (np.arange(B) * 20), atol=0.5)
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
    assert (targets > 0).sum(1).max() == 2 and targets[np.arange(B), BEFORE].max() > 0.3
    # Only the image before, as it was before mixing: never a third value.
    for n, image in enumerate(images):
        low, high = sorted((20 * n, 20 * BEFORE[n]))
        assert image.min() >= low and image.max() <= high
        assert kind == "mixup" or set(np.unique(image)) <= {low, high}


def test_a_cut_box_is_the_same_place_of_the_other_image() -> None:
    images = np.random.default_rng(0).integers(0, 256, (B, SIDE, SIDE, 3), dtype=np.uint8)
    mixed, mix = images.copy(), mix_of(cutmix=1.0)
    mix_images(mixed, np.eye(B, dtype=np.float32), mix, OWN, BEFORE)
    is_other = (mixed == images[BEFORE]).all(3)
    assert (is_other | (mixed == images).all(3)).all()
    np.testing.assert_allclose(is_other.mean((1, 2)), 1 - mix.own_share, atol=0.01)


def test_each_batch_uses_one_of_the_two_if_both_are_on() -> None:
    kinds = [mix_of(step, mixup=0.4, cutmix=1.0).boxes is None for step in range(60)]
    assert 15 < sum(kinds) < 45
    assert kinds == [mix_of(step, mixup=0.4, cutmix=1.0).boxes is None for step in range(60)]
