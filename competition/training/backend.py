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

from competition.training.device import choose_backend, hide_gpus_from_tensorflow

M_ARENA_MAX = -8  # of glibc's malloc.h
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
    if os.environ.get("KERAS_BACKEND") == "jax":
        import tensorflow

        hide_gpus_from_tensorflow(tensorflow)
    return choice


def start_tensorflow() -> None:
    """Import TensorFlow without its start-up messages, which no log level suppresses; a failing import still raises."""
    if "tensorflow" in sys.modules:
        return
    use_one_arena()
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


def use_one_arena() -> None:
    """Let all threads take memory from one arena of glibc's malloc; without glibc nothing changes.

    With an arena per thread the memory of an operation's result goes back to the system and is asked for again in every step:
    on 2 cores a training step of MobileNet at 224 px spent a fifth of its time in page faults.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def is_installed(distribution: str) -> bool:
    """Whether a Python distribution is installed."""
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False
