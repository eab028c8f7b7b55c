"""Augmentations by name that run on the device, as layers before the network that act in training only."""

from typing import Any

import keras

from competition.config.errors import UserError
from competition.config.plugins import active
from competition.images.augmentations import augmentation_named
from competition.training.backend import Tensor


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

    def __init__(self, augmentation: str, strength: float, seed: int) -> None:
        super().__init__(dtype="float32")
        self._augmentation, self._strength = augmentation, strength
        self._function, self._plugins = augmentation_named(augmentation), active()
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, images: Tensor, training: bool = False) -> Tensor:
        if not training:
            return images
        what = f"AUGMENTATIONS[{self._augmentation!r}]"
        seed = StepSeed(self.seed_generator.next())
        augmented = self._plugins.call(what, self._function, images, self._strength, seed)
        if getattr(augmented, "shape", None) != images.shape or augmented.dtype != images.dtype:
            received = f"{getattr(augmented, 'shape', type(augmented).__name__)} {getattr(augmented, 'dtype', '')}"
            raise UserError(
                self._plugins.problem(what, f"expected {tuple(images.shape)} float32, received {received.strip()}")
            )
        return augmented

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape
