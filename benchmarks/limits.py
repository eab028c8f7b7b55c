"""What this machine can do at most: multiply-adds, memory and processor cores, measured without this project.

python -m benchmarks.limits
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIDE, BYTES, REPEATS = 1024, 256 * 2**20, 9
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP")}


def peak_flops() -> float:
    """Float32 operations per second of processor time of a matrix product in one thread: the best of REPEATS.

    In a process of its own, because NumPy chooses its threads when it is imported; waiting threads would count as work.
    """
    code = "from benchmarks.limits import _product_seconds; print(_product_seconds())"
    environment, root = {**os.environ, **ONE_THREAD}, Path(__file__).resolve().parents[1]
    run = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, stdout=subprocess.PIPE, check=True)
    return 2 * SIDE**3 / float(run.stdout)


def _product_seconds() -> float:
    a = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    return min(_seconds(lambda: a @ a) for _ in range(REPEATS))


def bandwidth() -> float:
    """Bytes read and written per second of processor time by one thread copying memory: the best of REPEATS."""
    source = np.ones(BYTES, np.uint8)
    target = np.empty_like(source)
    return 2 * BYTES / min(_seconds(lambda: np.copyto(target, source)) for _ in range(REPEATS))


def _seconds(call: Any) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


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
        f"SPEED: limits of this machine: {len(os.sched_getaffinity(0))} cores, {peak_flops() / 1e9:,.0f} Gflop/s per core in a "
        f"float32 matrix product, {bandwidth() / 1e9:.1f} GB/s copied by one thread; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
