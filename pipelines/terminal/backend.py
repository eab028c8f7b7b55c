"""Start the Keras backend for a stage, and say which one."""

from competition.training import backend
from competition.training.backend import start_tensorflow
from pipelines.terminal.runner import Job

__all__ = ["start_backend", "start_tensorflow"]


def start_backend(job: Job) -> None:
    """Select the Keras backend, print it with the reason, and start TensorFlow."""
    if choice := backend.start_backend(job.params.device.backend):
        job.echo(f"backend: {choice}")
