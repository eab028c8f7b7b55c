"""Augmentations by name, for `train.augment`. A new one is one function and its entry in AUGMENTATIONS.

There are two kinds, told apart by their parameters:

    (image, strength, rng)    on the host, one image (H, W, 3) uint8 at a time; rng: numpy.random.Generator
    (images, strength, seed)  on the device, a batch (B, H, W, 3) float32 of 0..255; seed: for `keras.random`

All randomness comes from rng, which depends on (seed, fold, epoch, row), or from seed, which depends on the model's seed
and the step: a resumed run gets the same images. Host functions are called from several threads.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from competition.config.errors import UserError, did_you_mean
from competition.config.plugins import active, plugin_named
from competition.images import draws

Function = Callable[..., Any]
GeneratorOf = Callable[[int], np.random.Generator]  # stream -> the generator of this image
HostAugmentation = Callable[[np.ndarray, GeneratorOf], np.ndarray]


def greyscale(image: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Remove the colour of a share of the images.  strength: that share, 0 to 1."""
    if rng.random() >= strength:
        return image
    grey = image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    return np.repeat(np.round(grey).astype(np.uint8)[..., None], 3, axis=2)


def noise(images: Any, strength: float, seed: Any) -> Any:
    """Add Gaussian noise to every value.  strength: its standard deviation, share of the value range."""
    import keras

    noisy = images + 255.0 * strength * keras.random.normal(keras.ops.shape(images), seed=seed)
    return keras.ops.clip(noisy, 0.0, 255.0)


AUGMENTATIONS: dict[str, Function] = {"greyscale": greyscale, "noise": noise}


def augmentation_named(name: str) -> Function:
    """The function of this name, the project's or the user's. Raises UserError for an unknown name."""
    function = plugin_named("AUGMENTATIONS", name, AUGMENTATIONS) or AUGMENTATIONS.get(name)
    if function is None:
        known = [*AUGMENTATIONS, *active().augmentations]
        raise UserError(f"train.augment: {name!r} is not known{did_you_mean(name, known)}")
    return function


def is_on_device(name: str) -> bool:
    """Whether the augmentation runs on the device, on a batch."""
    return "seed" in inspect.signature(augmentation_named(name)).parameters


def mismatch(augmented: Any, image: Any) -> str:
    """Shape and dtype of what an augmentation returned; "" if they are those of its argument."""
    shape, dtype = getattr(augmented, "shape", None), getattr(augmented, "dtype", "")
    if shape == image.shape and dtype == image.dtype:
        return ""
    return f"{type(augmented).__name__ if shape is None else shape} {dtype}".strip()


def on_host(augment: Mapping[str, float]) -> HostAugmentation:
    """The host augmentations among `augment`, in order, as one function of an image.

    It returns an image of the same shape and dtype, and may modify its argument.
    """
    functions = [(name, augmentation_named(name), augment[name]) for name in augment if not is_on_device(name)]
    plugins = active()

    def augment_image(image: np.ndarray, generator: GeneratorOf) -> np.ndarray:
        for number, (name, function, strength) in enumerate(functions):
            what = f"AUGMENTATIONS[{name!r}]"
            augmented = plugins.call(what, function, image, strength, generator(draws.PLUGINS + number))
            if found := mismatch(augmented, image):
                raise UserError(plugins.problem(what, f"expected {image.shape} uint8, received {found}"))
            image = np.ascontiguousarray(augmented)  # as OpenCV needs it
        return image

    return augment_image
