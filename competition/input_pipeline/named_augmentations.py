"""Augmentations by name, for `train.augment`. A new one is one function and its entry in AUGMENTATIONS.

There are two kinds, told apart by their parameters:

    (image, strength, rng)    on the host, one image (H, W, 3) uint8 at a time; rng: numpy.random.Generator
    (images, strength, seed)  on the device, a batch (B, H, W, 3) float32 of 0..255; seed: for `keras.random`

All randomness comes from rng, which depends on (seed, fold, epoch, row), or from seed, which depends on the model's seed
and the step: a resumed run gets the same images. Host functions are called from several threads.

`train.albumentations` is a pipeline of Albumentations in its own serialised form (A.save), applied to each training image.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from threading import local
from typing import Any

import numpy as np

from competition.config.errors import UserError, did_you_mean, needed_for
from competition.config.plugins import Plugins
from competition.input_pipeline import random_streams

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


def augmentation_named(name: str, plugins: Plugins) -> Function:
    """The function of this name, the project's or the user's. Raises UserError for an unknown name."""
    function = plugins.named("AUGMENTATIONS", name, AUGMENTATIONS) or AUGMENTATIONS.get(name)
    if function is None:
        known = [*AUGMENTATIONS, *plugins.augmentations]
        raise UserError(f"train.augment: {name!r} is not known{did_you_mean(name, known)}")
    return function


def is_on_device(name: str, plugins: Plugins) -> bool:
    """Whether the augmentation runs on the device, on a batch."""
    return "seed" in inspect.signature(augmentation_named(name, plugins)).parameters


def mismatch(augmented: Any, image: Any) -> str:
    """Shape and dtype of what an augmentation returned; "" if they are those of its argument."""
    shape, dtype = getattr(augmented, "shape", None), getattr(augmented, "dtype", "")
    if shape == image.shape and dtype == image.dtype:
        return ""
    return f"{type(augmented).__name__ if shape is None else shape} {dtype}".strip()


def checked_augmentation(name: str, plugins: Plugins) -> Function:
    """The function of this name: (image or images, strength, rng or seed) -> what it makes of them.

    It raises UserError for a result of another shape or dtype.
    """
    function, what = augmentation_named(name, plugins), f"AUGMENTATIONS[{name!r}]"

    def augment_checked(images: Any, strength: float, randomness: Any) -> Any:
        augmented = plugins.call(what, function, images, strength, randomness)
        if found := mismatch(augmented, images):
            expected = f"{tuple(images.shape)} {'uint8' if isinstance(images, np.ndarray) else 'float32'}"
            raise UserError(plugins.problem(what, f"expected {expected}, received {found}"))
        return augmented

    return augment_checked


def on_host(augment: Mapping[str, float], plugins: Plugins) -> HostAugmentation:
    """The host augmentations among `augment`, in order, as one function of an image.

    It returns an image of the same shape and dtype, and may modify its argument.
    """
    names = [name for name in augment if not is_on_device(name, plugins)]
    functions = [(checked_augmentation(name, plugins), augment[name]) for name in names]

    def augment_image(image: np.ndarray, generator: GeneratorOf) -> np.ndarray:
        for number, (function, strength) in enumerate(functions):
            augmented = function(image, strength, generator(random_streams.PLUGINS + number))
            image = np.ascontiguousarray(augmented)  # for OpenCV
        return image

    return augment_image


def pipeline_of(file: str) -> HostAugmentation:
    """The pipeline of a file as a function of an image (H, W, 3) uint8, which keeps its shape and type.

    Its random numbers are seeded for each image by the generator of (seed, fold, epoch, row), so a resumed run gets the same
    images. Raises UserError if the file or Albumentations is missing, or the file holds no pipeline.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would ask a server for a newer version
    with needed_for(f"train.albumentations: {file}", "albumentations"):
        import albumentations
    if not Path(file).is_file():
        raise UserError(f"train.albumentations: {file} was not found; albumentations.save writes such a file")
    try:
        pipeline = albumentations.load(file, data_format="json" if file.endswith(".json") else "yaml")
    except Exception as error:  # whatever its reader meets
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"train.albumentations: {file} is not a pipeline that albumentations.save has written ({reason})"
        ) from None
    pipelines = local()  # a pipeline holds its random state, so each thread of the loader has one of its own

    def augment_image(image: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        if not hasattr(pipelines, "of_this_thread"):
            pipelines.of_this_thread = deepcopy(pipeline)
        pipelines.of_this_thread.set_random_seed(int(generator_of(random_streams.PIPELINE).integers(2**32)))
        augmented = pipelines.of_this_thread(image=image)["image"]
        if found := mismatch(augmented, image):
            raise UserError(
                f"train.albumentations: {file} makes {found} of an image {image.shape} uint8; expected the same shape and "
                "type: leave out Normalize and ToTensor, and give a crop the size of the image"
            )
        return np.ascontiguousarray(augmented)  # as OpenCV needs it

    return augment_image
