"""Signals that ask training to stop at its next checkpoint."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = b"\ngoldfold: stopping at the next checkpoint; Ctrl-C or SIGTERM once more stops at once\n"


@contextmanager
def stop_signals(received: list[int]) -> Iterator[None]:
    """Append the first SIGINT or SIGTERM inside the block to `received`; the process goes on. The second one ends it at once."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A shell starts background jobs with SIGINT ignored: it stays ignored.
    handled = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]

    def restore() -> None:
        for number in handled:
            signal.signal(number, previous[number])

    def first(number: int, _: Any) -> None:
        received.append(number)
        restore()
        os.write(2, STOPPING)  # print() may be interrupted by this very handler and is not reentrant

    for number in handled:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
