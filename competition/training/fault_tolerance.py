"""Recover from a device that hangs or is lost, and stop at a signal."""

import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from competition.config.errors import UserError, counted

HUNG_EXIT = 5
FIRST_PAUSE = 5.0  # seconds before a lost device is opened again; three times as long before each later attempt
STOPPING = b"\ngoldfold: stopping at the next checkpoint; Ctrl-C or SIGTERM once more stops at once\n"
# What the types or messages of errors say when the device or the connection to it is lost, or its memory is exhausted.
DEVICE_LOSS = (
    *("UnavailableError", "UNAVAILABLE", "Socket closed"),
    *("failed to connect to all addresses", "Connection reset by peer"),
)
OUT_OF_MEMORY = ("ResourceExhaustedError", "RESOURCE_EXHAUSTED", "OOM when allocating", "Out of memory")


@dataclass
class Watchdog:
    """Calls `hung` after `seconds` without a heartbeat: `with Watchdog(...) as heartbeat:`, then heartbeat() regularly.

    seconds: 0 = never.  hung: called in a thread of its own; it should end the process, which cannot recover.
    Time in which the whole process is suspended (closed laptop, Ctrl-Z) does not count.
    """

    seconds: float
    hung: Callable[[], None]
    _silent_seconds: float = 0.0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self._silent_seconds = 0.0
        if self.seconds:
            # In case the hang blocks all Python threads: print the stacks and end the process with code 1.
            faulthandler.dump_traceback_later(1.5 * self.seconds + 60, exit=True)

    def __enter__(self) -> "Watchdog":
        self()
        if self.seconds:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        pause = min(1.0, self.seconds / 10)
        while not self._stopped.wait(pause):
            self._silent_seconds += pause
            if self._silent_seconds >= self.seconds:
                self.hung()
                return


def is_caused_by(error: BaseException | None, words: Sequence[str]) -> bool:
    """Return True if the type or the message of the error, or of one of its causes, has one of the words."""
    while isinstance(error, Exception):
        if any(word in f"{type(error).__name__}: {error}" for word in words):
            return True
        error = error.__cause__
    return False


def train_with_retries(
    train: Callable[[Callable[[], None]], None], hang_seconds: float, retries: int, show: Callable[[str], None]
) -> None:
    """Call train(alive) under a watchdog; call it again, from its checkpoints, each time the device was lost.

    hang_seconds: without a call of alive() after which the process ends; 0 = never.  show: gets a line before each retry.
    Raises UserError if the device was lost more often than `retries`.
    """
    import keras

    def exit_hung() -> None:
        seconds = f"{hang_seconds:g} s (device.hang_seconds)"
        print(f"goldfold: no step for {seconds}; the stacks of all threads:", file=sys.stderr)
        faulthandler.dump_traceback()
        print("goldfold: stopped; the same command resumes from the last checkpoint", file=sys.stderr, flush=True)
        os._exit(HUNG_EXIT)

    with Watchdog(hang_seconds, exit_hung) as alive:
        for attempt in itertools.count(1):
            try:
                train(alive)
                return
            except Exception as error:
                if not is_caused_by(error, DEVICE_LOSS):
                    raise
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                if attempt > retries:
                    raise UserError(
                        f"the device was lost {counted(attempt, 'time')}, most recently with: {reason}; the same command "
                        "resumes from the last checkpoint (device.retries is the number of times it is opened again; never "
                        "with several hosts: start all of them again)"
                    ) from error
            show(f"the device was lost ({reason}); opening it again, try {attempt} of {retries}")
            # Without the state that Keras and JAX hold on lost devices, open_device can open them again.
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
