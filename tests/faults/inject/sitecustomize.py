"""Python imports this first where it is on PYTHONPATH: it arms the faults that the variable GOLDFOLD_FAULTS describes.

Faults are separated by spaces: point@path:n:action, where @path (a pattern) may be left out. The action happens when the
point is reached for the n-th time with a matching path.
"""

import ctypes
import errno
import os
import signal
from fnmatch import fnmatch

from competition.config import faults

ACTIONS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "int": lambda: os.kill(os.getpid(), signal.SIGINT),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "crash": lambda: ctypes.string_at(0),
}
ERRORS = {
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "readonly": OSError(errno.EROFS, os.strerror(errno.EROFS)),
    "memory": MemoryError(),
    "error": RuntimeError("planted"),
}


def parse(text: str) -> list[tuple[str, str, int, str]]:
    faults = []
    for word in text.split():
        place, count, action = word.rsplit(":", 2)
        name, _, pattern = place.partition("@")
        assert action in ACTIONS or action in ERRORS, word
        faults.append((name, pattern or "*", int(count), action))
    return faults


FAULTS = parse(os.environ.get("GOLDFOLD_FAULTS", ""))
reached_times = [0] * len(FAULTS)


def reached(name: str, path: str) -> None:
    for number, (point, pattern, count, action) in enumerate(FAULTS):
        if point != name or not fnmatch(path, pattern):
            continue
        reached_times[number] += 1
        if reached_times[number] == count:
            if action in ERRORS:
                raise ERRORS[action]
            ACTIONS[action]()


if FAULTS:
    faults.reached = reached
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores Ctrl-C
