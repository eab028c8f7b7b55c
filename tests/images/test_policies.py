"""The operations of RandAugment and TrivialAugment do what Pillow's do, in the documented ranges."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from competition.images.policies import OPERATIONS, RAND_AUGMENT, TRIVIAL_AUGMENT, rand_augment, trivial_augment

RANDOM = np.random.default_rng(0)
IMAGE = np.clip(RANDOM.normal(110, 45, (24, 24, 3)), 20, 220).astype(np.uint8)


@pytest.mark.parametrize(
    ("operation", "value", "pillow"),
    [
        ("autocontrast", 0, ImageOps.autocontrast),
        ("invert", 0, ImageOps.invert),
        ("posterize", 3, lambda image: ImageOps.posterize(image, 3)),
        ("solarize", 90, lambda image: ImageOps.solarize(image, 90)),
        ("colour", 1.7, lambda image: ImageEnhance.Color(image).enhance(1.7)),
        ("contrast", 0.4, lambda image: ImageEnhance.Contrast(image).enhance(0.4)),
        ("brightness", 1.5, lambda image: ImageEnhance.Brightness(image).enhance(1.5)),
        ("sharpness", 1.9, lambda image: ImageEnhance.Sharpness(image).enhance(1.9)),
        ("sharpness", 0.3, lambda image: ImageEnhance.Sharpness(image).enhance(0.3)),
    ],
)
def test_an_operation_equals_pillows_up_to_rounding(operation: str, value: float, pillow: Any) -> None:
    expected = np.asarray(pillow(Image.fromarray(IMAGE))).astype(int)
    # Pillow cuts fractions off, and rounds the grey value that it blends with; we round once.
    assert np.abs(OPERATIONS[operation](IMAGE, value) - expected).max() <= 2


@pytest.mark.parametrize(
    ("operation", "value", "matrix"),
    [
        ("shear_x", 0.3, (1, 0.3, 0, 0, 1, 0)),
        ("shear_y", -0.2, (1, 0, 0, -0.2, 1, 0)),
        ("translate_x", 0.25, (1, 0, 6, 0, 1, 0)),
        ("translate_y", -0.25, (1, 0, 0, 0, 1, -6)),
    ],
)
def test_an_affine_operation_moves_pixels_from_the_centre_and_fills_with_grey(
    operation: str, value: float, matrix: tuple[float, ...]
) -> None:
    (a, b, c, d, e, f), centre = matrix, 11.5
    # From the centre; Pillow counts from the corner of a pixel, hence the halves.
    c, f = c + (1 - a - b) * centre, f + (1 - d - e) * centre
    data = (a, b, c - (a + b - 1) / 2, d, e, f - (d + e - 1) / 2)
    expected = Image.fromarray(IMAGE).transform(
        (24, 24), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=(128,) * 3
    )
    inside = np.abs(OPERATIONS[operation](IMAGE, value).astype(int) - np.asarray(expected).astype(int))[4:-4, 4:-4]
    assert np.median(inside) <= 1 and (inside <= 8).mean() > 0.9
    assert (OPERATIONS[operation](IMAGE, value)[[0, 0, -1, -1], [0, -1, 0, -1]] == 128).all(1).any()


def test_equalizing_uses_the_whole_range_of_every_channel() -> None:
    equal = OPERATIONS["equalize"](IMAGE, 0)
    assert (equal.min((0, 1)) == 0).all() and (equal.max((0, 1)) == 255).all()
    order = np.argsort(IMAGE[..., 0].ravel(), kind="stable")
    assert (np.diff(equal[..., 0].ravel()[order].astype(int)) >= 0).all()


@pytest.mark.parametrize("table", [RAND_AUGMENT, TRIVIAL_AUGMENT])
def test_every_operation_keeps_shape_dtype_and_source_at_every_strength(table: Any) -> None:
    for operation, value in table:
        for strength in (0.0, 0.3, 1.0):
            source = IMAGE.copy()
            image = OPERATIONS[operation](source, value(strength, -1.0))
            assert image.shape == IMAGE.shape and image.dtype == np.uint8
            np.testing.assert_array_equal(source, IMAGE)


def test_strength_zero_changes_nothing_in_the_operations_of_trivial_augment_that_have_a_strength() -> None:
    for operation, value in TRIVIAL_AUGMENT:
        if operation not in ("autocontrast", "equalize"):
            assert np.abs(OPERATIONS[operation](IMAGE, value(0.0, 1.0)).astype(int) - IMAGE).max() <= 1


def test_rand_augment_has_the_ranges_of_timm() -> None:
    ranges = dict(RAND_AUGMENT)
    assert len(ranges) == 15
    for operation, at_9 in {
        "rotate": np.deg2rad(27), "posterize": 1, "solarize": 26, "solarize_add": 99, "colour": 1.81, "contrast": 1.81,
        "brightness": 1.81, "sharpness": 1.81, "shear_x": 0.27, "shear_y": 0.27, "translate_x": 0.405, "translate_y": 0.405,
    }.items():  # fmt: skip
        assert ranges[operation](0.9, 1.0) == pytest.approx(at_9), operation


def test_rand_augment_applies_none_one_or_two_operations_with_probability_one_half_each(monkeypatch: Any) -> None:
    monkeypatch.setattr("competition.images.policies.OPERATIONS", dict.fromkeys(OPERATIONS, lambda image, _: image + 1))
    black = np.zeros((2, 2, 3), np.uint8)
    applied = Counter(int(rand_augment(black, np.random.default_rng(n), 9)[0, 0, 0]) for n in range(800))
    assert set(applied) == {0, 1, 2} and abs(applied[1] / 800 - 0.5) < 0.09 and abs(applied[0] / 800 - 0.25) < 0.08


def test_trivial_augment_draws_every_operation_and_strength(monkeypatch: Any) -> None:
    seen: list[tuple[str, float]] = []

    def recorded(name: str) -> Any:
        return name, lambda strength, sign: seen.append((name, strength)) or 0.0

    monkeypatch.setattr("competition.images.policies.TRIVIAL_AUGMENT", [recorded(name) for name, _ in TRIVIAL_AUGMENT])
    for n in range(600):
        trivial_augment(IMAGE, np.random.default_rng(n))
    assert len({name for name, _ in seen}) == 14 and len({strength for _, strength in seen}) == 31
