"""Where studies are stored: Optuna's journal file, or any storage URL that Optuna understands."""

import threading
import time
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.config.redaction import redact
from competition.config.secrets import secrets_of

# Two workers that create the tables of an empty database at once: one of them gets such an error, and finds the tables
# when it tries again.
RACES = ("IntegrityError", "ProgrammingError", "OperationalError", "DuplicateObject")
JOURNAL = "journal:"  # before the path of a journal file elsewhere than in the folder of its study
PAUSES = (1.0, 2.0)  # seconds before it tries again


def open_storage(url: str, journal: Path) -> Any:
    """An Optuna storage: that of the URL (journal:PATH is a journal file), or the journal file if the URL is empty.

    Raises UserError if the database cannot be reached, without the URL's password.
    """
    import optuna

    if not url or url.startswith(JOURNAL):
        return open_journal(Path(url.removeprefix(JOURNAL)) if url else journal)
    if url.startswith("grpc://"):
        host, _, port = url.removeprefix("grpc://").partition(":")
        return optuna.storages.GrpcStorageProxy(host=host or "localhost", port=int(port or 13000))
    try:
        return _open_database(url)
    except Exception as error:  # SQLAlchemy's and the drivers' exceptions have no common base
        raise UserError(
            f"tune.storage: {without_password(url)} cannot be opened ({_one_line(error, url)}); state the URL of a running "
            "database and install its driver, e.g. pip install 'psycopg[binary]' for postgresql+psycopg://, or leave it empty "
            "for a journal file"
        ) from None


def _open_database(url: str) -> Any:
    from optuna.storages import RDBStorage

    for pause in PAUSES:
        try:
            return RDBStorage(url)
        except Exception as error:
            if type(error).__name__ not in RACES:
                raise
            time.sleep(pause)
    return RDBStorage(url)


def open_journal(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalLock(path)))


class JournalLock:
    """The lock of a journal file, for processes and threads. Before each append it repairs what a killed process left.

    The operating system releases the lock of a dead process at once; Optuna's own locks hold others up for 30 seconds.
    """

    def __init__(self, journal: Path) -> None:
        from filelock import FileLock

        self._journal, self._threads = journal, threading.Lock()
        self._processes = FileLock(journal.with_suffix(".lock"), thread_local=False)

    def acquire(self) -> bool:
        self._threads.acquire()
        self._processes.acquire()
        repair_journal(self._journal)
        return True

    def release(self) -> None:
        self._processes.release()
        self._threads.release()


def repair_journal(path: Path) -> None:
    """Move a partial last line, left by a killed process, to <name>.torn: the next line would be appended to it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        file.seek(-1, 2)
        if file.read(1) == b"\n":
            return
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1  # bytes
    path.with_suffix(".torn").write_bytes(data[complete:])
    with path.open("r+b") as file:
        file.truncate(complete)


def without_password(url: str) -> str:
    """The URL with *** in place of its password."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{':***' if colon else ''}{at}{place}"


def _one_line(error: Exception, url: str) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split()).replace(url, without_password(url))
    return redact(text, secrets_of(url))[:200]
