"""The tasks of a command: which are pending, done or failed, and what happens to one whose machine or process was lost."""

from collections.abc import Sequence
from dataclasses import replace

from competition.cluster.schedule import START_SECONDS, Task
from competition.cluster.work import Work

# Errors of a machine, which another one may not have. Anything else in Python would fail there too.
MACHINE_ERRORS = frozenset(
    {
        "OSError",
        "MemoryError",
        "UnavailableError",
        "ResourceExhaustedError",
        "XlaRuntimeError",
        "JaxRuntimeError",
    }
)


class Tasks:
    """Every task is pending, running, done or failed."""

    def __init__(self, works: Sequence[Work], retries: int) -> None:
        """retries: how often a task is started again."""
        self.works = {work.task.name: work for work in works}
        self.pending = [work.task for work in works]
        self.done: set[str] = set()
        self.failed: dict[str, str] = {}  # task -> sentence
        self.prefer: dict[str, str] = {}  # task -> machine that has its checkpoint
        self.avoid: set[tuple[str, str]] = set()  # (task, machine) where it crashed twice
        self._retries = retries
        self._losses: dict[str, int] = {}  # task -> how often its machine or process was lost
        self._crashed: set[tuple[str, str]] = set()  # (task, machine)
        self._seconds: dict[str, list[float]] = {}  # member -> measured seconds of its tasks
        self._starts: list[float] = []  # measured seconds of starts of processes

    def start(self, name: str) -> None:
        self.pending.remove(self.works[name].task)

    def finish(self, name: str) -> None:
        """Count a task as done, whether it was running or pending."""
        self.done.add(name)
        self.prefer.pop(name, None)
        self.pending = [task for task in self.pending if task.name != name]

    def measured(self, member: str, seconds: float) -> None:
        self._seconds.setdefault(member, []).append(seconds)

    def measured_start(self, seconds: float) -> None:
        self._starts.append(seconds)

    @property
    def start_seconds(self) -> float:
        """What it costs to start a process: the mean of those that were started in this command."""
        return sum(self._starts) / len(self._starts) if self._starts else START_SECONDS

    def expected(self, task: Task) -> Task:
        """The task with the mean of the seconds measured in this command, where there are any."""
        seconds = self._seconds.get(task.member)
        return replace(task, seconds=sum(seconds) / len(seconds)) if seconds else task

    def expected_pending(self) -> list[Task]:
        return [self.expected(task) for task in self.pending]

    def lost(self, name: str, machine: str, reason: str, on_machine: bool, is_shared: bool) -> list[str]:
        """Make a running task pending again, or fail it if that was done too often. Return lines that say so.

        on_machine: the machine is still there. It has the checkpoint and gets the task again, but not a third time.
        is_shared: other machines reach the checkpoint.
        """
        self._losses[name] = losses = self._losses.get(name, 0) + 1
        place = (name, machine)
        if place in self._crashed:
            self.avoid.add(place)
        if on_machine:
            self._crashed.add(place)
            self.prefer[name] = machine
        if losses > self._retries:
            return self.fail(name, f"started {losses} times without a result, most recently: {reason}")
        self.pending.insert(0, self.works[name].task)
        start = "" if not self.works[name].keeps_checkpoints else _start(on_machine or is_shared)
        return [f"cluster: {reason}; {name} is started again{start} (try {losses + 1} of {self._retries + 1})"]

    def fail(self, name: str, sentence: str) -> list[str]:
        """Give a task up, with those that depend on it. Return lines that say so."""
        self.failed[name] = sentence
        lines = [f"cluster: {name} failed: {sentence}"]
        for task in [task for task in self.pending if name in task.after]:
            self.pending.remove(task)
            lines += self.fail(task.name, f"it needs {name}, which failed")
        return lines

    def machine_gone(self, machine: str) -> None:
        """Forget the checkpoints of a machine that is gone."""
        self.prefer = {task: place for task, place in self.prefer.items() if place != machine}


def _start(has_checkpoint: bool) -> str:
    return (
        " from its last checkpoint" if has_checkpoint else " from its beginning: cluster.shared would keep checkpoints"
    )
