"""Locks between processes. A refused process is told who holds the lock; the lock of a dead process is free."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from competition.config.errors import UserError
from competition.files.manifest import display_path

HOLDER = ".holder.lock"  # ends the name of the file that names the holder: as of a lock, it is part of no result


class InUse(UserError):
    """Another process computes this result."""


@contextmanager
def exclusive(path: Path, what: str, seconds: float = 0.0) -> Iterator[str]:
    """Hold the lock `path`; yield the holder that died with it, "" if the last one released it.

    The folder of the lock is made if it is missing.  what: what this process does.  Raises InUse, which names the process that
    holds the lock, if one holds it for so many seconds.

    The operating system releases the lock of a dead process. Who holds it is in a file beside it, which only a dead
    process leaves behind.
    """
    beside = path.with_name(f"{path.stem}{HOLDER}")
    try:
        lock = FileLock(path).acquire(timeout=seconds)
    except Timeout:
        holder = last_holder(path) or "another run"
        raise InUse(f"{display_path(path.parent)} is in use by {holder}; wait for it, or stop it") from None
    with lock:
        dead = last_holder(path)
        # A disk that is full must not prevent the work: it may be the work that frees it.
        with suppress(OSError):
            beside.write_text(f"process {os.getpid()} on {socket.gethostname()} ({what})", encoding="utf-8")
        try:
            yield dead
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)


def last_holder(path: Path) -> str:
    """The process that holds the lock `path` or died while it held it; "" if it was released, or if that is unknown."""
    try:
        return path.with_name(f"{path.stem}{HOLDER}").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
