"""What the driver remembers about tasks."""

from competition.cluster.schedule import START_SECONDS, Task
from competition.cluster.tasks import Tasks
from competition.cluster.work import Work


def tasks_of(*works: Work, retries: int = 1) -> Tasks:
    return Tasks(works, retries)


def work(name: str, after: tuple[str, ...] = (), keeps_checkpoints: bool = True) -> Work:
    return Work(Task(name, name[0], 10.0, frozenset(after)), f"x/{name}", {}, keeps_checkpoints=keeps_checkpoints)


def test_measured_times_replace_estimates() -> None:
    tasks = tasks_of(work("a1"), work("b1"))
    assert tasks.start_seconds == START_SECONDS and [task.seconds for task in tasks.expected_pending()] == [10.0, 10.0]
    for seconds in (4.0, 8.0):
        tasks.measured("a", seconds)
        tasks.measured_start(seconds)
    assert tasks.start_seconds == 6.0 and [task.seconds for task in tasks.expected_pending()] == [6.0, 10.0]


def test_a_lost_task_is_next_and_a_line_says_from_where_it_continues() -> None:
    tasks = tasks_of(work("a1"), work("a2"), work("b1", keeps_checkpoints=False), retries=2)
    for name in ("a1", "b1"):
        tasks.start(name)
    assert tasks.lost("b1", "m", "m is gone", on_machine=False, is_shared=False) == [
        "cluster: m is gone; b1 is started again (try 2 of 3)"
    ]
    (line,) = tasks.lost("a1", "m", "it ended", on_machine=True, is_shared=False)
    assert line == "cluster: it ended; a1 is started again from its last checkpoint (try 2 of 3)"
    assert [task.name for task in tasks.pending] == ["a1", "b1", "a2"] and tasks.prefer == {"a1": "m"}
    tasks.machine_gone("m")
    assert tasks.prefer == {} and not tasks.avoid


def test_a_task_that_is_lost_too_often_fails_with_those_that_need_it() -> None:
    tasks = tasks_of(work("a1"), work("b1", after=("a1",)), work("c1", after=("b1",)))
    lines = []
    for _ in range(2):
        tasks.start("a1")
        lines += tasks.lost("a1", "m", "it ended", on_machine=True, is_shared=False)
    assert tasks.failed.keys() == {"a1", "b1", "c1"} and not tasks.pending and ("a1", "m") in tasks.avoid
    assert "started 2 times without a result, most recently: it ended" in lines[1]
    assert lines[2:] == [
        "cluster: b1 failed: it needs a1, which failed",
        "cluster: c1 failed: it needs b1, which failed",
    ]
