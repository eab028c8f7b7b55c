"""Train under a watchdog, and again after the loss of the device."""

import faulthandler
import os
import sys
import time
from collections.abc import Callable

from competition.config.errors import UserError
from pipelines.terminal import hosts
from pipelines.terminal.backend import start_backend
from pipelines.terminal.runner import Job

HUNG_EXIT = 5
FIRST_PAUSE = 5.0  # seconds before a lost device is opened again; three times as long before each later attempt


def train_with_retries(job: Job, name: str, train: Callable[[Callable[[], None]], None]) -> None:
    """Call train(alive) under a watchdog; call it again, from its checkpoints, each time the device was lost.

    Raises UserError if the device was lost more often than device.retries allows.
    """
    start_backend(job)
    from competition.training.fault_tolerance import Watchdog, is_device_loss, reset_devices, retry_on_device_loss

    limits = job.params.device
    # A lost host takes the others' device with it, and they cannot open it without that host.
    retries = 0 if hosts.are_joined() else limits.retries

    def reopen(attempt: int, error: Exception) -> None:
        job.echo(f"train {name}: the device was lost ({one_line(error)}); opening it again, try {attempt} of {retries}")
        reset_devices()
        time.sleep(FIRST_PAUSE * 3 ** (attempt - 1))

    def exit_hung() -> None:
        seconds = f"{limits.hang_seconds:g} s (device.hang_seconds)"
        print(f"goldfold: no step for {seconds}; the stacks of all threads:", file=sys.stderr)
        faulthandler.dump_traceback()
        print("goldfold: stopped; the same command resumes from the last checkpoint", file=sys.stderr, flush=True)
        os._exit(HUNG_EXIT)

    try:
        with Watchdog(limits.hang_seconds, exit_hung) as alive:
            retry_on_device_loss(lambda: train(alive), retries, reopen)
    except Exception as error:
        if not is_device_loss(error):
            raise
        raise UserError(
            f"the device was lost {retries + 1} times, most recently with: {one_line(error)}; the same command "
            "resumes from the last checkpoint (device.retries is the number of times it is opened again; never with several "
            "hosts: start all of them again)"
        ) from error


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
