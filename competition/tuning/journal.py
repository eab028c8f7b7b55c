"""Optuna's storages, with heartbeats in all of them, and the lock of a journal file."""

import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from optuna.storages import BaseStorage, GrpcStorageProxy, JournalStorage, RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import TrialState

BEAT = "beat"  # user attribute of a trial: a number that changes while its worker lives
MISSED_BEATS = 3  # after which a worker is dead


class _Heartbeats(BaseStorage, BaseHeartbeat):
    """Heartbeats in a user attribute of the trial.

    Optuna has them in databases only, and there it waits for ever for a worker that died before its first one. Here the
    time in which a heartbeat does not change is measured by whoever looks, so the clocks of two machines are never compared.
    """

    beat_seconds: float | None = None  # None: this process only reads

    def record_heartbeat(self, trial_id: int) -> None:
        with suppress(Exception):  # a database that is away for a moment; the trial itself fails if it stays away
            self.set_trial_user_attr(trial_id, BEAT, time.time_ns())

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        seen: dict[int, tuple[object, float]] = self.__dict__.setdefault("_beats_seen", {})
        now, stale = time.monotonic(), []
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            beat = trial.user_attrs.get(BEAT)
            before, since = seen.setdefault(trial._trial_id, (beat, now))
            if before != beat:
                seen[trial._trial_id] = (beat, now)
            elif now - since > MISSED_BEATS * (self.beat_seconds or 0.0):
                stale.append(trial._trial_id)
        return stale

    def get_heartbeat_interval(self) -> int | None:
        return self.beat_seconds  # type: ignore[return-value]  # Optuna waits for this time, which may be a fraction

    def get_heartbeat_stale_trial_callback(self) -> None:
        return None  # run_worker repeats the trials


class Journal(_Heartbeats, JournalStorage):
    pass


class Database(_Heartbeats, RDBStorage):
    pass


class Proxy(_Heartbeats, GrpcStorageProxy):
    pass


class JournalLock(BaseJournalFileLock):
    """The lock of a journal file, for processes and threads. Before each append it repairs what a killed process left.

    The operating system releases the lock of a dead process at once; Optuna's own locks hold others up for 30 seconds.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._lock = journal, FileLock(journal.with_suffix(".lock"))  # each thread opens it for itself

    def acquire(self) -> bool:
        self._lock.acquire()
        repair_journal(self._journal)
        return True

    def release(self) -> None:
        self._lock.release()


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
