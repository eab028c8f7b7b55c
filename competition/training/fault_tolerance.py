"""Recover from a device that hangs or is lost, and stop at a signal."""

import faulthandler
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from competition.config.errors import UserError, counted

FIRST_PAUSE = 5.0  # seconds before a lost device is opened again; three times as long before each later attempt
STOPPING = b"\ngoldfold: stopping at the next checkpoint; Ctrl-C or SIGTERM once more stops at once\n"
# What the types or messages of errors say when the device or the connection to it is lost, or its memory is exhausted.
LOST_CONNECTION = ("Socket closed", "failed to connect to all addresses", "Connection reset by peer")
DEVICE_LOSS = ("UnavailableError", "UNAVAILABLE", *LOST_CONNECTION)
OUT_OF_MEMORY = ("ResourceExhaustedError", "RESOURCE_EXHAUSTED", "OOM when allocating", "Out of memory")


def still_alive(seconds: float) -> None:
    """End the process with the stacks of all threads and code 1 unless this is called again within so many seconds; 0 = never.

    It ends a process whose Python threads are all blocked, too. faulthandler.cancel_dump_traceback_later() calls it off.
    """
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)


def is_caused_by(error: BaseException | None, words: Sequence[str]) -> bool:
    """Return True if the type or the message of the error, or of one of its causes, has one of the words."""
    while isinstance(error, Exception):
        if any(word in f"{type(error).__name__}: {error}" for word in words):
            return True
        error = error.__cause__
    return False


def reason_of_loss(error: Exception, attempt: int, retries: int) -> str:
    """What an error says about the device that was lost.  attempt: number of the loss, from 1.

    Raises the error itself if it is another one, and UserError after more than `retries` losses.
    """
    if not is_caused_by(error, DEVICE_LOSS):
        raise error
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if attempt > retries:
        raise UserError(
            f"the device was lost {counted(attempt, 'time')}, most recently with: {reason}; the same command resumes from the last "
            "checkpoint (device.retries is the number of times it is opened again; never with several hosts: start all of them again)"
        ) from error
    return reason


def forget_lost_device(attempt: int) -> None:
    """Drop the state that Keras and JAX hold on a lost device, and wait: open_device can then open it again."""
    import keras

    keras.utils.clear_session()
    if keras.backend.backend() == "jax":
        import jax
        from jax.extend.backend import clear_backends

        jax.clear_caches()
        clear_backends()
    time.sleep(FIRST_PAUSE * 3 ** (attempt - 1))


@contextmanager
def stop_signals(received: list[int]) -> Iterator[None]:
    """Append the first SIGINT or SIGTERM inside the block to `received`; the process goes on. The second one ends it at once."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A shell starts background jobs with SIGINT ignored: it stays ignored.
    previous = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def first(number: int, _: Any) -> None:
        received.append(number)
        for handled, handler in previous.items():
            signal.signal(handled, handler)
        os.write(2, STOPPING)  # print() may be interrupted by this very handler and is not reentrant

    for number in previous:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
