"""The cost of each view: the measured time of prediction, divided among the views.

All views share the network and differ only by their transform, so the transforms are measured separately.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from competition.ensemble.views import get_views
from competition.training.engine import Engine

REPEATS = 3


def transform_seconds(engine: Engine, names: Sequence[str], size: int) -> dict[str, float]:
    """View -> seconds in which the engine's devices transform one prediction batch of (size, size, 3) images.

    By the compiled program that prediction uses, on all devices, after a warm-up; the best of REPEATS.
    """
    images = np.random.default_rng(0).integers(0, 256, (engine.predict_batch, size, size, 3)).astype(np.uint8)
    return {
        name: min([engine.view_seconds(view, images) for _ in range(1 + REPEATS)][1:])
        for name, view in zip(names, get_views(names), strict=True)
    }


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
