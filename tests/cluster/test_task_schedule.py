"""Which task runs next, and where."""

from dataclasses import replace

import pytest

from competition.cluster.schedule import Cluster, Open, Resources, Slot, Start, Task, decide, demand, fits, left
from competition.cluster.simulation import (
    ONE_AT_A_TIME,
    Failures,
    Simulation,
    equal_machines,
    lower_bound,
)

ONE: Resources = {"CPU": 1.0, "memory": 8e9}
TAKEN: Resources = {"CPU": 1.0, "GPU": 0.0, "TPU": 0.0, "memory": 0.0}
NEEDS = {"a": ONE_AT_A_TIME, "b": ONE_AT_A_TIME}


def cluster(machines: int = 2, *slots: Slot, **changes: object) -> Cluster:
    return replace(Cluster({f"m{n}": ONE for n in range(machines)}, slots, NEEDS, 40.0), **changes)  # type: ignore[arg-type]


def tasks(member: str, count: int, seconds: float) -> list[Task]:
    return [Task(f"{member}{n}", member, seconds) for n in range(count)]


def test_the_member_with_most_work_is_first_and_a_second_machine_takes_the_other() -> None:
    pending = tasks("a", 3, 100) + tasks("b", 3, 90)
    first = decide(cluster(), pending, ())
    assert isinstance(first, Open) and first.task.member == "a"
    second = decide(cluster(2, Slot(1, "m0", "a", TAKEN, "a0", 100)), pending[1:], ())
    assert isinstance(second, Open) and (second.task.member, second.machine) == ("b", "m1")


@pytest.mark.parametrize(("count", "seconds", "changes"), [(1, 50, False), (1, 300, True), (2, 300, True)])
def test_a_warm_slot_changes_its_member_only_for_one_that_would_finish_too_late(count, seconds, changes) -> None:
    idle, busy = Slot(1, "m0", "a", TAKEN), Slot(2, "m1", "b", TAKEN, "b9", 50)
    step = decide(cluster(2, idle, busy), tasks("a", 1, 100) + tasks("b", count, seconds), ())
    if changes:
        assert isinstance(step, Open) and step.closing == (idle,) and step.task.member == "b"
    else:
        assert isinstance(step, Start) and step.slot == idle


def test_an_idle_slot_without_tasks_makes_room_for_another_member() -> None:
    idle = Slot(1, "m0", "a", TAKEN)
    step = decide(cluster(1, idle), tasks("b", 2, 100), ())
    assert isinstance(step, Open) and step.closing == (idle,)
    elsewhere = decide(cluster(2, idle), tasks("b", 2, 100), ())
    assert isinstance(elsewhere, Open) and (elsewhere.machine, elsewhere.closing) == ("m1", ())


def test_two_idle_slots_keep_their_members() -> None:
    slots = Slot(1, "m0", "a", TAKEN), Slot(2, "m1", "b", TAKEN)
    pending = tasks("a", 3, 100) + tasks("b", 3, 100)
    step = decide(cluster(2, *slots), pending, ())
    assert isinstance(step, Start) and (step.task.member, step.slot) == ("a", slots[0])


@pytest.mark.parametrize(("seconds", "opens"), [(10, False), (30, True)])
def test_no_slot_is_opened_for_work_that_is_done_before_it_starts(seconds: float, opens: bool) -> None:
    state = cluster(2, Slot(1, "m0", "a", TAKEN, "a9", seconds))
    assert isinstance(decide(state, tasks("a", 3, seconds), ()), Open) == opens


def test_nothing_starts_before_the_tasks_it_needs() -> None:
    student = Task("b0", "b", 1000, frozenset({"a0"}))
    step = decide(cluster(), [student, *tasks("a", 1, 1)], ())
    assert isinstance(step, Open) and step.task.name == "a0"
    assert decide(cluster(), [student], ()) is None
    assert isinstance(decide(cluster(), [student], {"a0"}), Open)


def test_a_task_goes_to_the_machine_with_its_checkpoint_and_not_to_one_that_failed() -> None:
    pending = tasks("a", 2, 10)
    for machine in ("m0", "m1"):
        step = decide(cluster(prefer={"a1": machine}), pending, ())
        assert isinstance(step, Open) and (step.task.name, step.machine) == ("a1", machine)
    step = decide(cluster(avoid={("a0", "m0")}), pending[:1], ())
    assert isinstance(step, Open) and step.machine == "m1"
    assert isinstance(decide(cluster(1, avoid={("a0", "m0")}), pending[:1], ()), Open)  # there is no other machine


def test_small_members_share_a_machine_and_nothing_is_taken_twice() -> None:
    machine: Resources = {"CPU": 16.0, "GPU": 2.0, "TPU": 0.0, "memory": 64e9}
    half = replace(ONE_AT_A_TIME, gpus=0.5, memory_gigabytes=10.0)
    state = Cluster({"m": machine}, (), {"a": half})
    pending, slots = tasks("a", 9, 100), []
    while step := decide(replace(state, slots=tuple(slots)), pending, ()):
        assert isinstance(step, Open)
        pending.remove(step.task)
        slots.append(Slot(len(slots), "m", "a", step.taken, step.task.name))
    assert len(slots) == 4 and left(machine, slots) == {"CPU": 0.0, "GPU": 0.0, "TPU": 0.0, "memory": 24e9}


@pytest.mark.parametrize(
    ("needs", "machine", "cpus", "possible"),
    [
        ({}, {"CPU": 8.0}, 8.0, True),
        ({"cpus": 2.0}, {"CPU": 8.0}, 2.0, True),
        ({"gpus": 1.0}, {"CPU": 8.0, "GPU": 4.0}, 2.0, True),
        ({"tpu_chips": 8}, {"CPU": 8.0, "TPU": 8.0}, 8.0, True),
        ({"tpu_chips": 8}, {"CPU": 8.0, "TPU": 4.0}, 8.0, False),
        ({}, {"CPU": 0.0}, 0.0, False),  # a head that takes no work
        ({"memory_gigabytes": 9.0}, {"CPU": 1.0, "memory": 8e9}, 1.0, False),
    ],
)
def test_what_a_slot_takes_of_a_machine(needs: dict, machine: Resources, cpus: float, possible: bool) -> None:
    taken = demand(replace(ONE_AT_A_TIME, **needs), machine)
    assert taken["CPU"] == cpus and fits(taken, machine) == possible


def test_without_failures_the_simulation_counts_starts_and_reaches_the_bound() -> None:
    work = tasks("a", 4, 100) + tasks("b", 4, 100)
    outcome = Simulation(equal_machines(2, NEEDS, 10.0), work).run()
    assert (outcome.seconds, outcome.wasted_seconds) == (410.0, 20.0)
    assert lower_bound(work, 2) == 400.0 and lower_bound(work, 100) == 100.0
    assert Simulation(equal_machines(1, NEEDS, 10.0), work).run().seconds == 820.0


@pytest.mark.parametrize(("seconds_of_a", "seconds_of_b"), [(1, 1), (1, 30), (30, 10), (10, 300), (300, 1)])
def test_one_machine_starts_one_process_for_each_member(seconds_of_a: float, seconds_of_b: float) -> None:
    work = tasks("a", 4, seconds_of_a) + tasks("b", 4, seconds_of_b)
    assert Simulation(equal_machines(1, NEEDS, 40.0), work).run().wasted_seconds == 80.0


def test_failures_cost_time_and_a_checkpoint_saves_some_of_it() -> None:
    work, machines = tasks("a", 10, 3600), equal_machines(4, NEEDS, 60.0)
    none = Simulation(machines, work).run().seconds
    seeds, common = range(20), {"per_hour": 0.5, "replace_seconds": 300.0}
    without = [
        Simulation(machines, work, Failures(**common, checkpoint_seconds=1e9, checkpoint_cost=0.0), n).run()
        for n in seeds
    ]
    every = Failures(**common, checkpoint_seconds=600.0, checkpoint_cost=5.0)
    with_checkpoints = [Simulation(machines, work, every, n).run() for n in seeds]
    mean = {
        name: sum(o.seconds for o in group) / 20 for name, group in (("without", without), ("with", with_checkpoints))
    }
    assert none < mean["with"] < mean["without"]
    assert all(outcome.wasted_seconds > 0 for outcome in without)
    # Work, waste and idle time are all there is.
    assert all(o.machine_seconds >= 36000 + o.wasted_seconds - 1e-6 for o in [*without, *with_checkpoints])


def test_work_that_can_never_run_takes_for_ever() -> None:
    assert Simulation(equal_machines(0, NEEDS, 10.0), tasks("a", 1, 1)).run().seconds == float("inf")
