"""What Keras computes with is chosen and started here, before anything imports it."""

import os
import sys
from pathlib import Path

from pipelines.runner import Job
from pipelines.versions import is_installed


def start_tensorflow(job: Job) -> None:
    """Import it without its lines about itself, which no log level silences; a failing import still raises."""
    if job.debug:
        return
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        import tensorflow  # noqa: F401
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def start_backend(job: Job) -> None:
    """Choose what Keras computes with, before Keras is imported, and say so; then start TensorFlow, which always feeds."""
    from competition.training.device import choose_backend, only_feeds

    if "keras" not in sys.modules:
        backend, reason = choose_backend(job.params.device.backend, os.environ, os.path.exists, is_installed)
        os.environ["KERAS_BACKEND"] = backend
        job.echo(f"backend: {backend} ({reason})")
    start_tensorflow(job)
    if os.environ.get("KERAS_BACKEND") == "jax":
        import tensorflow

        only_feeds(tensorflow)
