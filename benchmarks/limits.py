"""What this machine can do at most: multiply-adds, memory and processor cores, measured without this project.

python -m benchmarks.limits
"""

import os
import time
from typing import Any

import numpy as np

SIDE, BYTES, REPEATS = 2048, 256 * 2**20, 5


def peak_flops() -> float:
    """Float32 operations per second of a matrix product on all cores: the best of REPEATS."""
    a = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    return 2 * SIDE**3 / min(_seconds(lambda: a @ a) for _ in range(REPEATS))


def bandwidth() -> float:
    """Bytes per second read and written by one thread copying memory: the best of REPEATS."""
    source = np.ones(BYTES, np.uint8)
    target = np.empty_like(source)
    return 2 * BYTES / min(_seconds(lambda: np.copyto(target, source)) for _ in range(REPEATS))


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def multiply_adds(model: Any) -> float:
    """Multiply-adds of one image in the convolutions and dense layers of a Keras model."""
    total = 0.0
    for layer in model._flatten_layers():
        kernel = getattr(layer, "kernel", None)
        if kernel is not None:
            shape = layer.output.shape
            total += float(np.prod(shape[1:-1])) * float(np.prod(kernel.shape))
    return total


def main() -> None:
    print(
        f"SPEED: limits of this machine: {len(os.sched_getaffinity(0))} cores, {peak_flops() / 1e9:,.0f} Gflop/s in a float32 "
        f"matrix product, {bandwidth() / 1e9:.1f} GB/s copied by one thread; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
