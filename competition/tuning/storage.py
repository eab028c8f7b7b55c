"""Where studies are stored: Optuna's journal file, or any storage URL that Optuna understands."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.errors import UserError
from competition.config.redaction import redact
from competition.config.secrets import secrets_of

if TYPE_CHECKING:  # optuna is imported by the verbs that open a study
    from optuna.storages import BaseStorage

# Two workers that create the tables of an empty database at once: one of them gets such an error, and finds the tables
# when it tries again.
RACES = ("IntegrityError", "ProgrammingError", "OperationalError", "DuplicateObject")
PAUSES = (1.0, 2.0)  # seconds before it tries again
JOURNAL = "journal:"  # before the path of a journal file elsewhere than in the folder of its study


def open_storage(url: str, journal: Path) -> "BaseStorage":
    """An Optuna storage: that of the URL (journal:PATH is a journal file), or the journal file if the URL is empty.

    Raises UserError if the database cannot be reached, without the URL's password.
    """
    from optuna.storages.journal import JournalFileBackend

    from competition.tuning.journal import Database, Journal, JournalLock, Proxy

    if not url or url.startswith(JOURNAL):
        path = Path(url.removeprefix(JOURNAL)) if url else journal
        path.parent.mkdir(parents=True, exist_ok=True)
        return Journal(JournalFileBackend(str(path), lock_obj=JournalLock(path)))
    if url.startswith("grpc://"):
        host, _, port = url.removeprefix("grpc://").partition(":")
        return Proxy(host=host or "localhost", port=int(port or 13000))
    for pause in (*PAUSES, None):
        try:
            return Database(url)
        except Exception as error:  # SQLAlchemy's and the drivers' exceptions have no common base
            if type(error).__name__ in RACES and pause is not None:
                time.sleep(pause)
                continue
            secrets = secrets_of(url)
            cause = redact(" ".join(f"{type(error).__name__}: {error}".split()), secrets)[:200]
            raise UserError(
                f"tune.storage: {redact(url, secrets)} cannot be opened ({cause}); state the URL of a running database and "
                "install its driver, e.g. pip install 'psycopg[binary]' for postgresql+psycopg://, or leave it empty for a "
                "journal file"
            ) from None
    raise AssertionError("the last attempt returns or raises")
