"""Select and start the Keras backend. Must run before Keras is imported."""

import gc
import logging
import os
import sys
from pathlib import Path

from pipelines.terminal.runner import Job
from pipelines.terminal.versions import is_installed


def start_tensorflow() -> None:
    """Import TensorFlow without its start-up messages, which no log level suppresses; a failing import still raises."""
    if "tensorflow" in sys.modules:
        return
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


def start_backend(job: Job) -> None:
    """Select the Keras backend, print it with the reason, and start TensorFlow, which feeds the images on every backend."""
    from competition.training.device import choose_backend, hide_gpus_from_tensorflow

    if "keras" not in sys.modules:
        backend, reason = choose_backend(job.params.device.backend, os.environ, os.path.exists, is_installed)
        os.environ["KERAS_BACKEND"] = backend
        job.echo(f"backend: {backend} ({reason})")
    start_tensorflow()
    if os.environ.get("KERAS_BACKEND") == "jax":
        import tensorflow

        hide_gpus_from_tensorflow(tensorflow)
