"""The random numbers of those augmentations that may run on the device: colour, erasing, mixup and CutMix.

The host draws them and sends them beside the images, because a TPU has no gamma distribution, and so that the same numbers
are used wherever the operations run. `training/batch_augmentation.py` reads them.
"""

import numpy as np

from competition.images.augment import Augmentation, ImageDraws
from competition.images.mixing import Mix

# Columns: added grey levels, factors of contrast and saturation; erased box; share that mixup keeps; box of CutMix.
# A box is its first y, end y, first x, end x; it is empty where the option is off.
COLOUR, ERASED, OWN_SHARE, CUT, COUNT = slice(0, 3), slice(3, 7), 7, slice(8, 12), 12


def has_device_part(options: Augmentation) -> bool:
    """Whether there is anything that could run on the device."""
    colour = options.brightness or options.contrast or options.saturation
    return bool(colour or options.erase or options.mixup or options.cutmix)


def device_numbers(drawn: ImageDraws, mix: Mix | None) -> np.ndarray:
    """(B, COUNT) float32."""
    numbers = np.zeros((len(drawn.rows), COUNT), np.float32)
    numbers[:, COLOUR] = (0, 1, 1) if drawn.colours is None else drawn.colours
    numbers[:, ERASED] = 0 if drawn.erased is None else drawn.erased
    numbers[:, OWN_SHARE] = mix.own_share if mix is not None and mix.boxes is None else 1
    numbers[:, CUT] = 0 if mix is None or mix.boxes is None else mix.boxes
    return numbers
