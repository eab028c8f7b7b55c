"""Select and start the Keras backend. Must run before Keras is imported."""

import ctypes
import gc
import logging
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from competition.training.device import choose_backend

# Of glibc's malloc: option of mallopt (malloc.h) -> value. One arena; what is smaller than the largest threshold that it takes is
# no mapping of its own; half a gigabyte of free memory is kept.
MALLOC_OPTIONS = {-8: 1, -3: 32 * 2**20, -1: 512 * 2**20, -2: 64 * 2**20}
RECORDED_PACKAGES = (
    "numpy", "keras", "tensorflow-cpu", "tensorflow", "tensorflow-tpu", "jax", "pandas", "scikit-learn", "optuna",
    "opencv-python-headless",
)  # fmt: skip
Tensor = Any  # of Keras, TensorFlow, JAX or NumPy: their types have no common base


def start_backend(setting: str) -> str:
    """Select the backend and start TensorFlow, which feeds the images on every backend.

    setting: device.backend.
    Returns "jax (reason)"; "" if Keras was imported before, with its backend.
    """
    choice = ""
    if "keras" not in sys.modules:
        backend, reason = choose_backend(setting, os.environ, os.path.exists, is_installed)
        os.environ["KERAS_BACKEND"] = backend
        choice = f"{backend} ({reason})"
    start_tensorflow()
    return choice


def start_tensorflow() -> None:
    """Import TensorFlow without its start-up messages, which no log level suppresses; a failing import still raises."""
    if "tensorflow" in sys.modules:
        return
    # All threads use the memory that others have freed. By default each thread has an arena, and large results of operations go back
    # to the system and are asked for again in every step: on 2 cores a training step of MobileNet at 224 px spent a fifth of its time
    # in page faults, its predictions a third.
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # without glibc
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in MALLOC_OPTIONS.items():
                mallopt(option, value)
    # PyTorch's compiler; loaded after TensorFlow 2.21, it ends the process by a segmentation fault.
    if is_installed("timm") and is_installed("triton"):
        import_module("triton")
    stderr = os.dup(2)
    with Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), 2)
    try:
        import tensorflow  # noqa: F401
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    # Every member compiles programs of its own, in which TensorFlow suspects one that is compiled again and again.
    logging.getLogger("tensorflow").addFilter(
        lambda record: "triggered tf.function retracing" not in record.getMessage()
    )
    gc.freeze()  # what was imported is never garbage: half a million objects that no later collection has to visit


def versions() -> dict[str, str]:
    """Package -> version, for Python and the installed ones of RECORDED_PACKAGES; recorded with every result."""
    installed = {package: version(package) for package in RECORDED_PACKAGES if is_installed(package)}
    return {"python": ".".join(map(str, sys.version_info[:3])), **installed}


def is_installed(distribution: str) -> bool:
    """Whether a Python distribution is installed."""
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False
