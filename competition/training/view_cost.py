"""The cost of each view: the measured time of prediction, divided among the views.

All views share the network and differ only by their transform, so the transforms are measured separately.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from competition.ensemble.views import get_views

REPEATS = 3


def transform_seconds(names: Sequence[str], batch: int, size: int) -> dict[str, float]:
    """View -> seconds to transform one batch of (size, size, 3) images, after a warm-up; the best of REPEATS."""
    from keras import ops

    images = ops.convert_to_tensor(np.random.default_rng(0).uniform(0, 255, (batch, size, size, 3)).astype(np.float32))
    seconds = {}
    for name, view in zip(names, get_views(names), strict=True):
        times = []
        for _ in range(1 + REPEATS):
            started = perf_counter()
            float(ops.sum(view(images)))  # float() waits for the device
            times.append(perf_counter() - started)
        seconds[name] = min(times[1:])
    return seconds


def seconds_per_1000(seconds: float, images: int, transforms: Mapping[str, float], batch: int) -> dict[str, float]:
    """View -> seconds for 1,000 images by one fold model; the sum equals the measured time.

    seconds: of one warm pass of all views over `images` images, padding included.
    transforms: result of `transform_seconds` for batches of `batch` images.
    """
    transform = {name: 1000 / batch * batch_seconds for name, batch_seconds in transforms.items()}
    total = 1000 / images * seconds
    network = max(total - sum(transform.values()), 0.0) / len(transform)
    scale = total / sum(network + own for own in transform.values())
    return {name: float(f"{scale * (network + own):.4g}") for name, own in transform.items()}
