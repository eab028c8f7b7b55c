"""The progress of a command on a cluster: what is done, the time left, and whether anything can still run."""

import time
from collections.abc import Sequence

from competition.cluster.schedule import Cluster
from competition.cluster.simulation import Simulation
from competition.cluster.slots import OpenSlot
from competition.cluster.tasks import Tasks
from competition.cluster.work import Status
from competition.config.errors import UserError

ESTIMATE_SECONDS = 5.0  # between two estimates of the time left


class Progress:
    def __init__(self, tasks: Tasks, wait: float) -> None:
        """wait: seconds without any machine for what is left."""
        self._tasks, self._wait = tasks, wait
        self._usable_since = time.monotonic()  # when something ran or could start most recently
        self._estimated, self._estimate = -1e9, 0.0  # time of the estimate, seconds left

    def check(self, is_working: bool) -> None:
        """Raise UserError if for `wait` seconds no machine could take anything that is left.

        is_working: a task runs, or a machine is being prepared.
        """
        if is_working:
            self._usable_since = time.monotonic()
        elif self._tasks.pending and time.monotonic() - self._usable_since > self._wait:
            names = ", ".join(task.name for task in self._tasks.pending[:3])
            raise UserError(
                f"no machine of the cluster can take {names}; start machines and run the same command: it asks for what "
                "is missing (cluster.wait is how long it waits for them)"
            )

    def status(self, cluster: Cluster, busy: Sequence[OpenSlot]) -> Status:
        """busy: slots that run a task."""
        if time.monotonic() - self._estimated > ESTIMATE_SECONDS:
            self._estimated, self._estimate = time.monotonic(), self._seconds_left(cluster, busy)
        return Status(len(self._tasks.done), len(self._tasks.works), [slot.row for slot in busy], self._estimate)

    def _seconds_left(self, cluster: Cluster, busy: Sequence[OpenSlot]) -> float:
        """Seconds until everything is done if no machine fails; inf if something can never run."""
        running = {}
        for slot in busy:
            task = self._tasks.expected(self._tasks.works[slot.slot.task].task)
            running[slot.slot.number] = task.seconds * (1 - slot.share)
        return Simulation(cluster, self._tasks.expected_pending(), running=running, done=self._tasks.done).run().seconds
