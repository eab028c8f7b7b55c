"""Start the Keras backend and TensorFlow for a stage, with the options of its command line."""

from competition.training import backend
from pipelines.terminal.runner import Job


def start_tensorflow(job: Job) -> None:
    """Start TensorFlow; with DEBUG=1 the first import does it, with all its messages."""
    if not job.options.debug:
        backend.start_tensorflow()


def start_backend(job: Job) -> None:
    """Select the Keras backend, print it with the reason, and start TensorFlow."""
    if choice := backend.start_backend(job.params.device.backend, shows_messages=job.options.debug):
        job.echo(f"backend: {choice}")
