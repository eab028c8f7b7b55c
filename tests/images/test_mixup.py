"""Mixup and CutMix mix each image with the one before it, and its targets by the share of the pixels."""

from dataclasses import replace

import numpy as np
import pytest
from builders import STILL

from competition.images.augment import Augmentation, draw
from competition.images.draws import epoch_key
from competition.images.mixup import Mix, draw_mix, mix_images, mix_targets

UNCHANGED, B, SIDE = Augmentation(**STILL), 12, 16
FLAT = np.broadcast_to((np.arange(B) * 20).astype(np.uint8)[:, None, None, None], (B, SIDE, SIDE, 3))
ALL, BEFORE = np.arange(B), (np.arange(B) - 1) % B


def mix_of(step: int = 0, count: int = B, **options: float) -> Mix:
    augmentation = replace(UNCHANGED, **options)
    drawn = draw(epoch_key(1, 2, 3), [(row, 0) for row in range(count)], SIDE, SIDE, augmentation)
    mix = draw_mix(drawn, step, SIDE, augmentation)
    assert mix is not None
    return mix


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mixing_weights_each_label_by_its_share_of_the_pixels(kind: str) -> None:
    images, mix = FLAT.copy(), mix_of(**{kind: 1.0})
    mix_images(images, mix, ALL, BEFORE)
    targets = mix_targets(np.eye(B, dtype=np.float32), mix, ALL, BEFORE)
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
    mix_images(mixed, mix, ALL, BEFORE)
    for n in range(B):
        is_other = (mixed[n] == images[BEFORE[n]]).all(2)
        assert (is_other | (mixed[n] == images[n]).all(2)).all()
        assert is_other.mean() == pytest.approx(1 - mix.own_share[n], abs=0.01)


@pytest.mark.parametrize(("alpha", "deviation"), [(1.0, 12**-0.5), (0.2, (4 * 1.4) ** -0.5)])
def test_shares_are_those_of_a_beta_distribution(alpha: float, deviation: float) -> None:
    kept = mix_of(count=3000, mixup=alpha).own_share
    assert kept.mean() == pytest.approx(0.5, abs=0.03) and kept.std() == pytest.approx(deviation, abs=0.02)


def test_each_batch_uses_one_of_the_two_if_both_are_on() -> None:
    kinds = [mix_of(step, mixup=0.4, cutmix=1.0).boxes is None for step in range(60)]
    assert 15 < sum(kinds) < 45
    assert kinds == [mix_of(step, mixup=0.4, cutmix=1.0).boxes is None for step in range(60)]
