"""Decide which task runs next, and where: on a real cluster (driver.py) and on a simulated one (simulation.py).

A slot is a process on a machine that holds one member, compiled: its first task pays the start, later ones do not.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Start:
    """Run the task in an idle slot."""

    task: Task
    slot: Slot


@dataclass(frozen=True)
class Open:
    """Open a slot and run the task in it."""

    task: Task
    machine: str
    taken: Resources


@dataclass(frozen=True)
class Close:
    """End an idle slot, whose machine another member needs."""

    slot: Slot


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
    taken = {"CPU": cpus, "GPU": needs.gpus, "TPU": float(needs.tpu_chips)}
    return {**taken, "memory": needs.memory_gigabytes * GIGABYTE}


def fits(taken: Resources, free: Resources) -> bool:
    """Return True if a slot fits. A machine without CPUs (a head that only manages) takes no slot."""
    return taken["CPU"] > 0 and all(count <= free.get(name, 0.0) + 1e-9 for name, count in taken.items())


def left(machine: Resources, slots: Sequence[Slot]) -> Resources:
    """The resources of a machine that none of these slots takes."""
    return {name: count - sum(slot.taken.get(name, 0.0) for slot in slots) for name, count in machine.items()}


def decide(cluster: Cluster, pending: Sequence[Task], done: Collection[str]) -> Start | Open | Close | None:
    """The next step, or None if all that can run does.

    pending: tasks that are not running.  done: names of finished tasks.
    The member with the most seconds of work per slot goes first. A warm slot changes its member only for one that is
    ahead by more than a start costs. So long members spread over many machines, short ones share a machine.
    """
    options = _warm(cluster, pending, done) + _cold(cluster, pending, done)
    return max(options, key=lambda option: option[0])[1] if options else None


def _warm(cluster: Cluster, pending: Sequence[Task], done: Collection[str]) -> list[tuple[float, Start | Open | Close]]:
    options: list[tuple[float, Start | Open | Close]] = []
    for slot in (slot for slot in cluster.slots if not slot.task):
        if task := _task_for(cluster, pending, done, slot.member, slot.machine):
            value = _waiting_per_slot(cluster, pending, slot.member) + cluster.start_seconds
            options.append((value, Start(task, slot)))
    return options


def _cold(cluster: Cluster, pending: Sequence[Task], done: Collection[str]) -> list[tuple[float, Start | Open | Close]]:
    options: list[tuple[float, Start | Open | Close]] = []
    for member in dict.fromkeys(task.member for task in pending):
        value = _waiting_per_slot(cluster, pending, member)
        places = [place for place in cluster.machines if _task_for(cluster, pending, done, member, place)]
        # A machine that holds a checkpoint of the member first, then the one with the fewest slots.
        for machine in sorted(places, key=lambda place: _rank(cluster, pending, member, place)):
            own = [slot for slot in cluster.slots if slot.machine == machine]
            idle = [slot for slot in own if not slot.task]
            taken = demand(cluster.needs[member], cluster.machines[machine])
            task = _task_for(cluster, pending, done, member, machine)
            if task and fits(taken, left(cluster.machines[machine], own)):
                options.append((value, Open(task, machine, taken)))
                break
            busy = [slot for slot in own if slot.task]
            if idle and fits(taken, left(cluster.machines[machine], busy)):
                options.append((value, Close(idle[0])))
                break
    return options


def _task_for(
    cluster: Cluster, pending: Sequence[Task], done: Collection[str], member: str, machine: str
) -> Task | None:
    """The task of a member that this machine should run next: one whose checkpoint it has, else the longest."""
    ready = [task for task in pending if task.member == member and task.after <= set(done)]
    allowed = [task for task in ready if not _is_avoided(cluster, task, machine)]
    others = cluster.machines.keys() - {machine}
    # A task waits for the machine with its checkpoint only if no other task of the member can run here.
    return max(
        allowed,
        key=lambda task: (_preference(cluster, task, machine, others), task.seconds),
        default=None,
    )


def _preference(cluster: Cluster, task: Task, machine: str, others: Collection[str]) -> int:
    preferred = cluster.prefer.get(task.name, "")
    return 1 if preferred == machine else -1 if preferred in others else 0


def _rank(cluster: Cluster, pending: Sequence[Task], member: str, machine: str) -> tuple[bool, int]:
    return not _is_preferred(cluster, pending, member, machine), _slots(cluster, machine)


def _is_preferred(cluster: Cluster, pending: Sequence[Task], member: str, machine: str) -> bool:
    return any(cluster.prefer.get(task.name) == machine for task in pending if task.member == member)


def _is_avoided(cluster: Cluster, task: Task, machine: str) -> bool:
    """Return True if the task failed on this machine and another one could take it."""
    if (task.name, machine) not in cluster.avoid:
        return False
    return any(
        (task.name, other) not in cluster.avoid and fits(demand(cluster.needs[task.member], total), total)
        for other, total in cluster.machines.items()
    )


def _waiting_per_slot(cluster: Cluster, pending: Sequence[Task], member: str) -> float:
    """Seconds of waiting work for each slot of the member, if one more joins those that are busy."""
    busy = sum(1 for slot in cluster.slots if slot.member == member and slot.task)
    return sum(task.seconds for task in pending if task.member == member) / (busy + 1)


def _slots(cluster: Cluster, machine: str) -> int:
    return sum(1 for slot in cluster.slots if slot.machine == machine)
