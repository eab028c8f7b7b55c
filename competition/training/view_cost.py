"""What each view costs, measured while predicting: the whole is timed warm and shared out, because every view passes the
same network and differs by its own transform alone.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from competition.ensemble.views import get_views

TIMES = 3


def transform_seconds(names: Sequence[str], batch: int, size: int) -> dict[str, float]:
    """View -> seconds of its transform of one batch of (size, size, 3) images, warm; the best of some."""
    from keras import ops

    images = ops.convert_to_tensor(np.random.default_rng(0).uniform(0, 255, (batch, size, size, 3)).astype(np.float32))
    found = {}
    for name, view in zip(names, get_views(names), strict=True):
        times = []
        for _ in range(1 + TIMES):
            started = perf_counter()
            float(ops.sum(view(images)))  # waits for the device
            times.append(perf_counter() - started)
        found[name] = min(times[1:])
    return found


def seconds_per_1000(seconds: float, images: int, transforms: Mapping[str, float], batch: int) -> dict[str, float]:
    """View -> seconds for 1,000 images by one fold model; they add up to what was measured.

    seconds: one warm pass of all views over `images` images, fillers counted.  transforms: `transform_seconds`, of
    `batch` images. Every view passes the same network, so beyond its own transform it costs what any other does.
    """
    own = {name: 1000 / batch * each for name, each in transforms.items()}
    whole = 1000 / images * seconds
    passing = max(whole - sum(own.values()), 0.0) / len(own)
    scale = whole / sum(passing + each for each in own.values())
    return {name: float(f"{scale * (passing + each):.4g}") for name, each in own.items()}
