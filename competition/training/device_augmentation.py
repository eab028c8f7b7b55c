"""Augmentations on the device: colour, erasing, mixup and CutMix of a batch in the compiled step, and layers by name.

The first are made in operations that a TPU has, and their images are those that the host would make, up to one grey level
where a value is close to a half. The second stand before the network and act in training only.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from competition.input_pipeline.augment import ERASED as ERASED_LEVEL
from competition.input_pipeline.mixup import COLOUR, CUT, ERASED, OWN_SHARE
from competition.training.backend import Tensor
from competition.training.device import Device


def augments_on_device(device: Device) -> bool:
    """Whether colour, erasing, mixup and CutMix run on the device: not on a CPU, where OpenCV is faster than the compiled step.

    Nor on several TensorFlow replicas, which cannot mix an image with one of another replica.
    """
    return device.kind != "cpu" and (device.backend == "jax" or device.replicas == 1)


def augmented(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(images, targets) of the network.

    images: (B, H, W, 3) uint8, which are returned as they are, or a pair of them and their (B, COUNT) float32 numbers.
    targets: (B, C) float32. Both are of the whole batch.
    """
    if not isinstance(images, tuple | list):
        return images, targets
    pixels, numbers = images
    size = pixels.shape[1]
    added, contrast, saturation = (numbers[:, COLOUR][:, n, None, None, None] for n in range(3))
    mixed = ops.cast(pixels, "float32")
    mixed = contrast * mixed + (added + (1.0 - contrast) * ops.mean(mixed, axis=(1, 2, 3), keepdims=True))
    grey = ops.mean(mixed, axis=3, keepdims=True)
    mixed = ops.clip(ops.round(grey + saturation * (mixed - grey)), 0.0, 255.0)  # rounded and clipped once
    mixed = ops.where(_inside(numbers[:, ERASED], size), float(ERASED_LEVEL), mixed)
    own_share, cut = numbers[:, OWN_SHARE], numbers[:, CUT]
    before, share = ops.roll(mixed, 1, axis=0), own_share[:, None, None, None]
    mixed = ops.where(_inside(cut, size), before, ops.round(share * mixed + (1.0 - share) * before))
    own = (own_share * (1.0 - (cut[:, 1] - cut[:, 0]) * (cut[:, 3] - cut[:, 2]) / float(size * size)))[:, None]
    return ops.cast(mixed, "uint8"), own * targets + (1.0 - own) * ops.roll(targets, 1, axis=0)


def _inside(boxes: Tensor, size: int) -> Tensor:
    """(B, H, W, 1) bool masks of (B, 4) boxes."""
    places = ops.arange(size, dtype="float32")[None]
    first_y, end_y, first_x, end_x = (boxes[:, n, None] for n in range(4))
    rows, columns = (places >= first_y) & (places < end_y), (places >= first_x) & (places < end_x)
    return (rows[:, :, None] & columns[:, None, :])[..., None]


class StepSeed(keras.random.SeedGenerator):
    """A seed generator without a variable: any number of draws from one state, so that the state counts steps."""

    def __init__(self, state: Any) -> None:
        """state: (2,) int tensor."""
        self._state, self._draws = state, 0

    def next(self, ordered: bool = True) -> Any:
        self._draws += 1
        return self._state + keras.ops.cast([7919 * self._draws, 0], self._state.dtype)


class DeviceAugmentation(keras.layers.Layer):
    """Images (B, H, W, 3) float32 of 0..255 -> augmented images of the same shape in training, else the same images."""

    def __init__(self, augment: Callable[..., Any], strength: float, seed: int) -> None:
        """augment: (images, strength, seed) -> images, see `checked_augmentation`."""
        super().__init__(dtype="float32")
        self._augment, self._strength = augment, strength
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, images: Tensor, training: bool = False) -> Tensor:
        return self._augment(images, self._strength, StepSeed(self.seed_generator.next())) if training else images
