"""Decide which task runs next, and where: on a real cluster (driver.py) and on a simulated one (simulation.py).

A slot is a process on a machine that holds one member, compiled: its first task pays the start, later ones do not.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

from competition.config.params import Needs

GIGABYTE = 1e9
START_SECONDS = 40.0  # imports and first compile of a process: 25 to 40 s were measured on two busy cores
Resources = dict[str, float]  # Ray's names: CPU, GPU, TPU (chips), memory (bytes)


@dataclass(frozen=True)
class Task:
    """One fold model to train, or to predict by."""

    name: str  # unique
    member: str  # tasks of one member share a slot, one after the other
    seconds: float  # estimated, without the start of a process
    after: frozenset[str] = frozenset()  # names of the tasks that must be done before


@dataclass(frozen=True)
class Slot:
    number: int  # unique
    machine: str
    member: str
    taken: Resources
    task: str = ""  # that it runs; "" = idle
    seconds: float = 0.0  # until it is done


@dataclass(frozen=True)
class Start:
    """Run the task in an idle slot."""

    task: Task
    slot: Slot


@dataclass(frozen=True)
class Open:
    """Open a slot and run the task in it, after these idle slots of the machine have been closed."""

    task: Task
    machine: str
    taken: Resources
    closing: tuple[Slot, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """What a decision depends on."""

    machines: Mapping[str, Resources]  # usable machine -> all of its resources
    slots: Sequence[Slot]
    needs: Mapping[str, Needs]  # member -> what one of its tasks takes
    start_seconds: float = START_SECONDS
    prefer: Mapping[str, str] = field(default_factory=dict)  # task -> machine that has its checkpoint
    avoid: Collection[tuple[str, str]] = ()  # (task, machine) that failed


def demand(needs: Needs, machine: Resources) -> Resources:
    """What a slot takes of this machine; cpus 0 is all of them, or the share of its GPUs or TPU chips."""
    shares = [
        count / machine[name] for name, count in (("GPU", needs.gpus), ("TPU", needs.tpu_chips)) if machine.get(name)
    ]
    cpus = needs.cpus or machine.get("CPU", 0.0) * min(max(shares, default=1.0) or 1.0, 1.0)
    memory = needs.memory_gigabytes * GIGABYTE
    return {"CPU": cpus, "GPU": needs.gpus, "TPU": float(needs.tpu_chips), "memory": memory}


def fits(taken: Resources, free: Resources) -> bool:
    """Return True if a slot fits. A machine without CPUs (a head that only manages) takes no slot."""
    return taken["CPU"] > 0 and all(count <= free.get(name, 0.0) + 1e-9 for name, count in taken.items())


def left(machine: Resources, slots: Sequence[Slot]) -> Resources:
    """The resources of a machine that none of these slots takes."""
    return {name: count - sum(slot.taken.get(name, 0.0) for slot in slots) for name, count in machine.items()}


def decide(cluster: Cluster, pending: Sequence[Task], done: Collection[str]) -> Start | Open | None:
    """The next step, or None if all that can run does.

    pending: tasks that are not running.  done: names of finished tasks.
    A slot stays with its member while that has tasks, unless another member would finish too late by that. A free place
    goes to the member with the most seconds of work per slot, and the longest of its tasks. So long members spread over
    many machines, and short ones share a machine.
    """
    state = _State(cluster, pending, done)
    members = sorted(state.members, key=lambda member: _order(state, member))
    for slot in cluster.slots:
        task = None if slot.task else _task_for(state, slot.member, slot.machine)
        if task:
            urgent = [member for member in members if member != slot.member and _is_urgent(state, member, slot)]
            places = (_place(state, member) for member in urgent)
            return next((step for step in places if step), Start(task, slot))
    return next((step for member in members if (step := _place(state, member))), None)


@dataclass(frozen=True)
class _State:
    cluster: Cluster
    pending: Sequence[Task]
    done: Collection[str]

    @property
    def members(self) -> list[str]:
        """Members with a task that can run now."""
        ready = (task.member for task in self.pending if task.after <= set(self.done))
        return list(dict.fromkeys(ready))

    @cached_property
    def goal(self) -> float:
        """Seconds in which all work could be done: spread evenly, with a start for members without a slot, or the longest task."""
        slots = self.cluster.slots
        seconds = [task.seconds for task in self.pending] + [slot.seconds for slot in slots if slot.task]
        starts = len({task.member for task in self.pending} - {slot.member for slot in slots})
        total = sum(seconds) + starts * self.cluster.start_seconds
        return max(total / max(len(self.cluster.machines), len(slots)), max(seconds))


def _place(state: _State, member: str) -> Open | None:
    """Open a slot for a member where there is room, else in the place of idle slots."""
    cluster = state.cluster
    if _busy(cluster, member) and _waiting_per_slot(state, member, 0) <= cluster.start_seconds:
        return None  # its slots are through with all tasks before another one has started
    options = []
    for machine in cluster.machines:
        if task := _task_for(state, member, machine):
            taken = demand(cluster.needs[member], cluster.machines[machine])
            closing = _to_close(cluster, machine, taken)
            if closing is not None:
                options.append((len(closing), _rank(state, member, machine), Open(task, machine, taken, closing)))
    return min(options, key=lambda option: option[:2])[2] if options else None


def _to_close(cluster: Cluster, machine: str, taken: Resources) -> tuple[Slot, ...] | None:
    """The fewest idle slots of a machine without which these resources are free; None if they never are."""
    own = [slot for slot in cluster.slots if slot.machine == machine]
    idle = [slot for slot in own if not slot.task]
    for number in range(len(idle) + 1):
        rest = [slot for slot in own if slot not in idle[:number]]
        if fits(taken, left(cluster.machines[machine], rest)):
            return tuple(idle[:number])
    return None


def _is_urgent(state: _State, member: str, slot: Slot) -> bool:
    """Return True if a member must take the place of an idle slot, because it would finish too late if it waited for it."""
    cluster = state.cluster
    if any(slot.member == member and not slot.task for slot in cluster.slots):
        return False
    if any(
        _to_close(cluster, machine, demand(cluster.needs[member], cluster.machines[machine])) == ()
        for machine in cluster.machines
    ):
        return False
    wait = _waiting_per_slot(state, slot.member, 1)
    return _is_late(state, member) and wait + cluster.start_seconds + _longest(state, member) > state.goal


def _order(state: _State, member: str) -> tuple[bool, bool, float]:
    """Members whose slots would finish too late first: those without a slot, then by their longest task.

    The others by their work per slot.
    """
    is_late, busy = _is_late(state, member), _busy(state.cluster, member)
    return not is_late, busy > 0, -(_longest(state, member) if is_late else _waiting_per_slot(state, member, 1))


def _is_late(state: _State, member: str) -> bool:
    """Return True if the busy slots of a member miss the goal by more than the start of another one costs."""
    waiting = sum(1 for task in state.pending if task.member == member)
    busy = [slot.seconds for slot in state.cluster.slots if slot.member == member and slot.task]
    if not busy:
        return True
    end = sum(busy) / len(busy) + ceil(waiting / len(busy)) * _longest(state, member)
    return end > state.goal + state.cluster.start_seconds


def _longest(state: _State, member: str) -> float:
    return max(task.seconds for task in state.pending if task.member == member)


def _task_for(state: _State, member: str, machine: str) -> Task | None:
    """The task of a member that this machine should run next: one whose checkpoint it has, else the longest."""
    ready = [task for task in state.pending if task.member == member and task.after <= set(state.done)]
    allowed = [task for task in ready if not _is_avoided(state.cluster, task, machine)]
    # A task waits for the machine with its checkpoint only while the member has other tasks.
    return max(allowed, key=lambda task: (_preference(state.cluster, task, machine), task.seconds), default=None)


def _preference(cluster: Cluster, task: Task, machine: str) -> int:
    preferred = cluster.prefer.get(task.name, "")
    return 1 if preferred == machine else -1 if preferred in cluster.machines else 0


def _rank(state: _State, member: str, machine: str) -> tuple[bool, int]:
    """Machines with a checkpoint of the member first, then those with the fewest slots."""
    cluster = state.cluster
    has_checkpoint = any(cluster.prefer.get(task.name) == machine for task in state.pending if task.member == member)
    return not has_checkpoint, sum(1 for slot in cluster.slots if slot.machine == machine)


def _is_avoided(cluster: Cluster, task: Task, machine: str) -> bool:
    """Return True if the task failed on this machine and another one could take it."""
    if (task.name, machine) not in cluster.avoid:
        return False
    return any(
        (task.name, other) not in cluster.avoid and fits(demand(cluster.needs[task.member], total), total)
        for other, total in cluster.machines.items()
    )


def _waiting_per_slot(state: _State, member: str, more: int) -> float:
    """Seconds of waiting work for each busy slot of the member, if `more` join them."""
    waiting = sum(task.seconds for task in state.pending if task.member == member)
    return waiting / (_busy(state.cluster, member) + more)


def _busy(cluster: Cluster, member: str) -> int:
    return sum(1 for slot in cluster.slots if slot.member == member and slot.task)
