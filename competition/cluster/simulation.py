"""A simulated cluster: the driver's own decisions on machines that fail, to estimate time, waste and cost."""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from types import MappingProxyType

import numpy as np

from competition.cluster.schedule import Cluster, Open, Resources, Slot, Start, Task, decide
from competition.config.params import Needs

HOUR = 3600.0
ONE_AT_A_TIME = Needs(cpus=0.0, gpus=0.0, tpu_chips=0, memory_gigabytes=0.0)


@dataclass(frozen=True)
class Failures:
    """How machines fail, and what survives."""

    per_hour: float  # rate of each machine, constant over time
    replace_seconds: float  # until another machine takes the place
    checkpoint_seconds: float  # work between two checkpoints that other machines reach; inf = none
    checkpoint_cost: float  # seconds that one checkpoint takes


NO_FAILURES = Failures(0.0, 0.0, inf, 0.0)


@dataclass(frozen=True)
class Outcome:
    seconds: float  # until the last task is done
    machine_seconds: float  # of machines that were up until then
    wasted_seconds: float  # work done twice, checkpoints and starts of processes


def lower_bound(tasks: Sequence[Task], machines: int) -> float:
    """Seconds that no schedule of one task per machine at a time can beat: no starts, no failures, no gaps."""
    return max(sum(task.seconds for task in tasks) / machines, max(task.seconds for task in tasks))


def equal_machines(number: int, members: Collection[str], start_seconds: float) -> Cluster:
    """A cluster of machines that take one task at a time."""
    machines: dict[str, Resources] = {f"machine {n + 1}": {"CPU": 1.0, "memory": inf} for n in range(number)}
    return Cluster(machines, (), dict.fromkeys(members, ONE_AT_A_TIME), start_seconds)


class Simulation:
    """Tasks on a cluster. Runs once."""

    def __init__(
        self,
        cluster: Cluster,
        tasks: Sequence[Task],
        failures: Failures = NO_FAILURES,
        seed: int = 0,
        running: Mapping[int, float] = MappingProxyType({}),
        done: Collection[str] = (),
    ) -> None:
        """running: slot of the cluster -> seconds until its task is done, for a cluster that works already."""
        self._cluster, self._failures, self._done = cluster, failures, set(done)
        self._up: dict[str, Resources] = dict(cluster.machines)
        self._slots = {slot.number: slot for slot in cluster.slots}
        self._numbers = count(max(self._slots, default=0) + 1)
        self._tasks = {task.name: task for task in tasks}
        self._pending = list(tasks)
        self._work = {task.name: task.seconds for task in tasks}  # seconds left
        self._begun: dict[int, tuple[float, float]] = {}  # slot -> (time at which its task started, seconds of start)
        self._ends: dict[int, float] = {}  # slot -> time at which its task is done
        self._now, self._wasted, self._machine_seconds = 0.0, 0.0, 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._random = count(), np.random.default_rng(seed)
        for number, seconds in running.items():
            self._ends[number] = seconds
            self._at(seconds, partial(self._finish, number, self._slots[number].task, None))
        if failures.per_hour:
            for machine in self._up:
                self._schedule_failure(machine)

    def run(self) -> Outcome:
        self._dispatch()
        while self._pending or any(slot.task for slot in self._slots.values()):
            if not self._events:
                return Outcome(inf, inf, inf)
            time, _, act = heapq.heappop(self._events)
            self._machine_seconds += (time - self._now) * len(self._up)
            self._now = time
            act()
            self._dispatch()
        return Outcome(self._now, self._machine_seconds, self._wasted)

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))

    def _dispatch(self) -> None:
        while step := decide(self._state(), self._pending, self._done):
            self._start(step)

    def _state(self) -> Cluster:
        slots = [replace(slot, seconds=self._ends.get(slot.number, 0.0) - self._now) for slot in self._slots.values()]
        return replace(self._cluster, machines=self._up, slots=slots)

    def _start(self, step: Start | Open) -> None:
        if isinstance(step, Open):
            for closing in step.closing:
                del self._slots[closing.number]
            slot = Slot(next(self._numbers), step.machine, step.task.member, step.taken)
            start = self._cluster.start_seconds
        else:
            slot, start = step.slot, 0.0
        name = step.task.name
        self._slots[slot.number] = replace(slot, task=name)
        self._pending.remove(self._tasks[name])
        self._begun[slot.number] = (self._now, start)
        checkpoints = self._checkpoint_costs(name)
        self._wasted += start + checkpoints
        self._ends[slot.number] = self._now + start + self._work[name] + checkpoints
        self._at(self._ends[slot.number], partial(self._finish, slot.number, name, self._begun[slot.number]))

    def _checkpoint_costs(self, name: str) -> float:
        """Seconds of all checkpoints in the rest of a task; 0 without checkpoints."""
        return self._work[name] // self._failures.checkpoint_seconds * self._failures.checkpoint_cost

    def _finish(self, number: int, name: str, begun: tuple[float, float] | None) -> None:
        """Free a slot, unless it is gone or runs something that began later."""
        slot = self._slots.get(number)
        if slot is not None and slot.task == name and self._begun.get(number) == begun:
            self._slots[number] = replace(slot, task="")
            self._done.add(name)

    def _schedule_failure(self, machine: str) -> None:
        wait = self._random.exponential(HOUR / self._failures.per_hour)
        self._at(self._now + wait, lambda: self._fail(machine))

    def _fail(self, machine: str) -> None:
        resources = self._up.pop(machine)
        for slot in [slot for slot in self._slots.values() if slot.machine == machine]:
            del self._slots[slot.number]
            if slot.task:
                self._lose(slot)

        def replaced() -> None:
            self._up[machine] = resources
            self._schedule_failure(machine)

        self._at(self._now + self._failures.replace_seconds, replaced)

    def _lose(self, slot: Slot) -> None:
        """Return the task of a slot that is gone, less the work that its last checkpoint holds."""
        begun, start = self._begun[slot.number]
        every, cost = self._failures.checkpoint_seconds, self._failures.checkpoint_cost
        worked = max(self._now - begun - start, 0.0)
        saved = min(worked // (every + cost) * every, self._work[slot.task]) if every < inf else 0.0
        # What the start of the task counted as waste and has not happened yet, is not waste.
        self._wasted += (self._now - begun) - saved - start - self._checkpoint_costs(slot.task)
        self._work[slot.task] -= saved
        task = replace(self._tasks[slot.task], seconds=self._work[slot.task])
        self._tasks[task.name] = task
        self._pending.insert(0, task)
