"""Random numbers of the training data: a stream of its own for each (seed, fold, epoch, row).

Streams are those of NumPy's Philox, a counter-based generator: nothing is carried from one image to the next, so the
numbers depend neither on the batch size nor on the thread or the host that makes the image.
"""

import numpy as np

IMAGE, CROP, MIX, BATCH, PIPELINE = 0, 1, 3, 4, 5  # streams of one image; BATCH: of one step
PLUGINS = 16  # stream of the first augmentation by name


def epoch_key(seed: int, fold: int, epoch: int) -> np.ndarray:
    """(2,) uint64, the key of all generators of one epoch."""
    return np.random.SeedSequence([seed, fold, epoch], spawn_key=(1,)).generate_state(2, np.uint64)


def generator(key: np.ndarray, row: int, occurrence: int, stream: int) -> np.random.Generator:
    """The generator of one image for one purpose.  occurrence: how often the row was drawn before in this epoch."""
    counter = np.array([0, stream, row, occurrence], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
