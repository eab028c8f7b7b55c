"""A device that hangs, and a device that is gone."""

import faulthandler
import threading
from collections.abc import Callable
from typing import Any

LOST = ("UNAVAILABLE", "Socket closed", "failed to connect to all addresses", "Connection reset by peer")


class Watchdog:
    """Calls `hung` when nobody has said for `seconds` that it goes on; `with Watchdog(...) as alive:`, then alive().

    seconds: 0 = never.  hung: called in a thread of its own; it should end the process, which cannot be saved.
    Time in which the whole process stands still (a closed laptop, Ctrl-Z) does not count.
    """

    def __init__(self, seconds: float, hung: Callable[[], None]) -> None:
        self._seconds, self._hung = seconds, hung
        self._silent = 0.0
        self._over = threading.Event()

    def __call__(self) -> None:
        self._silent = 0.0
        if self._seconds:
            # For a hang in which no Python thread runs any more: the stacks are written, the process ends with code 1.
            faulthandler.dump_traceback_later(1.5 * self._seconds + 60, exit=True)

    def __enter__(self) -> "Watchdog":
        self()
        if self._seconds:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        pause = min(1.0, self._seconds / 10)
        while not self._over.wait(pause):
            self._silent += pause
            if self._silent >= self._seconds:
                self._hung()
                return


def is_device_loss(error: BaseException | None) -> bool:
    """Does it, or what caused it, say that the device or the way to it is gone?"""
    if error is None:
        return False
    said = type(error).__name__ == "UnavailableError" or any(word in str(error) for word in LOST)
    return (isinstance(error, Exception) and said) or is_device_loss(error.__cause__)


def retry_on_device_loss(work: Callable[[], None], retries: int, again: Callable[[int, Exception], None]) -> None:
    """work(), and once more each time the device was lost, at most `retries` times; any other error passes through.

    again(1, 2, ..., error) comes before every further try.  Raises the last error when there were too many.
    """
    for number in range(1, retries + 2):
        try:
            return work()
        except Exception as error:
            if number > retries or not is_device_loss(error):
                raise
            again(number, error)
    return None


def reset_devices() -> None:
    """Drop what Keras and JAX keep of devices that are gone, so that open_device finds them anew."""
    import keras

    keras.utils.clear_session()
    if keras.backend.backend() == "jax":
        import jax
        from jax.extend.backend import clear_backends

        jax.clear_caches()
        clear_backends()
