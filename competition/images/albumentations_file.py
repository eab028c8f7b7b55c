"""train.albumentations: a pipeline of Albumentations in its own serialised form (A.save), applied to each training image.

Its random numbers are seeded for each image by the generator of (seed, fold, epoch, row), so a resumed run gets the same
images. A pipeline holds its random state, so each thread of the loader has one of its own.
"""

import os
from pathlib import Path
from threading import local
from typing import Any

import numpy as np

from competition.config.errors import UserError, needed_for
from competition.images import draws
from competition.images.augmentations import GeneratorOf, HostAugmentation, mismatch


def pipeline_of(file: str) -> HostAugmentation:
    """The pipeline of a file as a function of an image (H, W, 3) uint8, which keeps its shape and type.

    Raises UserError if the file or Albumentations is missing, or the file holds no pipeline.
    """
    pipelines = local()
    pipelines.of_this_thread = _loaded(file)  # an error before the first batch

    def augment_image(image: np.ndarray, generator_of: GeneratorOf) -> np.ndarray:
        if not hasattr(pipelines, "of_this_thread"):
            pipelines.of_this_thread = _loaded(file)
        pipelines.of_this_thread.set_random_seed(int(generator_of(draws.PIPELINE).integers(2**32)))
        augmented = pipelines.of_this_thread(image=image)["image"]
        if found := mismatch(augmented, image):
            raise UserError(
                f"train.albumentations: {file} makes {found} of an image {image.shape} uint8; expected the same shape and "
                "type: leave out Normalize and ToTensor, and give a crop the size of the image"
            )
        return np.ascontiguousarray(augmented)  # as OpenCV needs it

    return augment_image


def _loaded(file: str) -> Any:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would ask a server for a newer version
    with needed_for(f"train.albumentations: {file}", "albumentations"):
        import albumentations
    if not Path(file).is_file():
        raise UserError(
            f"train.albumentations: {file} was not found; expected a file that albumentations.save has written"
        )
    try:
        return albumentations.load(file, data_format="json" if file.endswith(".json") else "yaml")
    except Exception as error:  # whatever its reader meets
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"train.albumentations: {file} is not a pipeline that albumentations.save has written ({reason})"
        ) from None
