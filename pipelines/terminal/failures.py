"""Unexpected errors as one sentence with its remedy, and the exit code of each kind."""

import errno
import os
from pathlib import Path

from competition.config.errors import UserError
from competition.kaggle.errors import KaggleError
from competition.kaggle.explain import explain

DISK_FULL_EXIT = 4
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_MESSAGES = ("No space left on device", "Disk quota exceeded", "File too large")  # as TensorFlow words them
MISUSED = "a file and a folder are confused{place}: {line}; remove or rename it"
UNWRITABLE = "no permission to write{place}: {line}; make it writable, or choose another folder (--work, --submissions)"
OF_ERRNO = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), UNWRITABLE),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR), MISUSED),
    errno.ENAMETOOLONG: "a name is too long for a file: {line:.200}",
}


def describe(error: Exception) -> str:
    """The sentence of an error that is not a UserError."""
    line, name = " ".join(str(error).split()), getattr(error, "filename", None)
    place = f" at {name}" if name else ""
    if is_disk_full(error):
        return (
            f"the disk is full{place}; complete results and the last checkpoint are intact: free disk space, then run the "
            f"same command again ({line})"
        )
    if isinstance(error, OSError) and error.errno in OF_ERRNO:
        return OF_ERRNO[error.errno].format(place=place, line=line)
    if isinstance(error, MemoryError):
        return "the memory of this machine is used up; lower train.batch, predict.batch or cache.ram_gigabytes"
    explanation = explain(f"{type(error).__name__}: {line}")
    remedy = f"\n{explanation.cause} Remedy: {explanation.fix}" if explanation else ""
    return f"{type(error).__name__}: {line}{remedy}\nUnexpected error; DEBUG=1 shows the traceback."


def exit_code(error: Exception) -> int:
    """DISK_FULL_EXIT for a full disk, also during a download; else 1."""
    if isinstance(error, KaggleError):
        return DISK_FULL_EXIT if error.kind == "disk" else 1
    return DISK_FULL_EXIT if is_disk_full(error) and not isinstance(error, UserError) else 1


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if the error or one of its causes says so."""
    if error is None:
        return False
    by_number = isinstance(error, OSError) and error.errno in FULL
    return by_number or any(text in str(error) for text in FULL_MESSAGES) or is_disk_full(error.__cause__)


def require_folder(path: Path, is_written: bool) -> None:
    """Raise UserError if no folder can be at `path`; if is_written, also if nothing can be written to it."""
    nearest = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not nearest.is_dir():
        raise UserError(f"{nearest} is not a folder, results of goldfold are expected in {path}; remove or rename it")
    if is_written and not os.access(nearest, os.W_OK | os.X_OK):
        remedy = "make it writable, or choose another folder (--work, --submissions)"
        raise UserError(f"{nearest} cannot be written; {remedy}")
