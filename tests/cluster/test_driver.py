"""The driver on two real Ray nodes, with a process that computes nothing; a computing process ends with the one that started it."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from builders import ROOT, params, wait_until
from ray_nodes import command_of, ray_nodes
from small_child import write_result

from competition.cluster import connection
from competition.cluster.driver import Callbacks, Status, run_tasks
from competition.cluster.node import MACHINE_EXIT, Setup, TaskError, TaskRequest, archive, run_process
from competition.config.errors import UserError
from competition.config.params import Needs

MACHINES = ("127.0.0.4", "127.0.0.5")
WHOLE_MACHINE = Needs(cpus=0.0, gpus=0.0, tpu_chips=0, memory_gigabytes=0.0)


@pytest.fixture(scope="module")
def ray_connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "competition", project / "competition", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("small_child.py"), project)
    nodes = ray_nodes(tmp_path_factory.mktemp("nodes"), *MACHINES)
    with nodes as cluster, connection.connected(cluster.address, project):
        yield


@dataclass
class Bench:
    """A folder for the machines, and what came home."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)
    delivered: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def run(self, *requests: TaskRequest, show=lambda status: None) -> None:
        import ray

        (tries := self.folder / "tries").mkdir()
        files = {name: (hashlib.sha256(data).hexdigest(), ray.put(data)) for name, data in self.files.items()}
        setup = Setup(str(self.folder / "machines"), "", files, "start", "", ("-u", "-m", "small_child"), ())
        from_home = lambda name: archive(self.folder / "home" / name, self.folder)  # noqa: E731
        callbacks = Callbacks(from_home, self.deliver, self.lines.append, show, lambda *_: None)
        tasks = [replace(request, values={**request.values, "tries": str(tries)}) for request in requests]
        run_tasks(tasks, setup, replace(params().cluster, retries=2), callbacks)

    def deliver(self, request: TaskRequest, data: bytes) -> None:
        assert request.name not in self.delivered
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            assert zipped.namelist() == ["value.txt", "manifest.json"]
            self.delivered[request.name] = zipped.read("value.txt").decode()

    def starts(self, name: str) -> list[tuple[str, int]]:
        """(machine, process) of each time the task was started."""
        path = self.folder / "tries" / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [(machine, int(process)) for machine, process in map(str.split, lines)]


@pytest.fixture
def bench(ray_connection, tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def task(name: str, do: str = "work", reads: tuple[str, ...] = (), **values: object) -> TaskRequest:
    """The task `a1` belongs to member a; its result is the folder x/a1."""
    return TaskRequest(name, name[0], "train", f"x/{name}", {"do": do, **values}, tuple(f"x/{r}" for r in reads))


def test_every_task_is_done_once_and_a_student_gets_the_results_of_its_teachers(bench: Bench) -> None:
    write_result(bench.folder / "home" / "x" / "h5", "5")  # a teacher that was trained before
    names = [f"{member}{n}" for member in "ab" for n in range(3)]
    bench.files["x/data/index.csv"] = b"data"
    bench.run(task("c1", reads=("a1", "b2", "h5")), *(task(name, seconds=1) for name in names))
    assert bench.delivered == {**{name: name[1] for name in names}, "c1": "1+2+5+1"}
    assert all(len(bench.starts(name)) == 1 for name in names)
    assert {bench.starts(name)[0][0] for name in names} == set(MACHINES)
    machines = bench.folder / "machines"
    assert all((machines / m / "x/data/index.csv").read_bytes() == b"data" for m in MACHINES)
    assert not [path for m in MACHINES for path in (machines / m / "tasks").iterdir()]  # removed when they are at home


def test_crashes_and_errors_of_a_machine_are_tried_again_and_an_error_of_the_task_is_not(bench: Bench) -> None:
    with pytest.raises(UserError, match=r"a1: .*; 2 more failed; everything else is done") as error:
        bench.run(
            task("a1", "exit 1"), task("a2", f"exit {MACHINE_EXIT}", times=1), task("a3", "crash", times=1),
            task("b1", "crash"), task("c1", reads=("b1",)),
        )  # fmt: skip
    assert "this is wrong" in str(error.value) or "b1" in str(error.value)
    assert [len(bench.starts(name)) for name in ("a1", "a2", "a3", "b1", "c1")] == [1, 2, 2, 3, 0]
    assert bench.delivered == {"a2": "2", "a3": "3"}
    lines = "\n".join(bench.lines)
    assert "cluster: a1 failed: this is wrong" in lines and "c1 failed: it needs b1, which failed" in lines
    assert "b1 failed: started 3 times without a result, most recently: the process ended with code -11" in lines
    assert "a3 failed or was lost on 127.0.0." in lines and "(try 2 of 3)" in lines


def test_ctrl_c_ends_all_processes(bench: Bench) -> None:
    def interrupt(status: Status) -> None:
        if all(bench.starts(name) for name in ("a1", "b1")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(task("a1", "sleep"), task("b1", "sleep"), task("b2", "sleep"), show=interrupt)
    processes = [process for name in ("a1", "b1") for _, process in bench.starts(name)]
    assert len(processes) == 2 and wait_until(lambda: not any(map(command_of, processes)))
    assert re.fullmatch(r"cluster: stopping [23] running tasks; training .*", *bench.lines)  # b2 may wait


def test_a_need_that_no_machine_has_and_a_public_address_are_errors(ray_connection) -> None:
    machines = connection.alive_machines()
    connection.check_needs(machines, {"a": WHOLE_MACHINE})
    connection.check_addresses(machines, public=False)
    with pytest.raises(UserError, match=r"a fold model of a, which needs 8 TPU; the largest of 2 machines have 1 CPU"):
        connection.check_needs(machines, {"a": replace(WHOLE_MACHINE, tpu_chips=8)})
    elsewhere = replace(machines[0], address="8.8.8.8")
    connection.check_addresses([elsewhere], public=True)
    with pytest.raises(UserError, match=r"8\.8\.8\.8 is a public address, and whoever reaches Ray's ports runs code"):
        connection.check_addresses([elsewhere], public=False)


@pytest.mark.parametrize(
    ("needs", "machines", "cpus"),
    [
        ({}, [{"CPU": 8.0}, {"CPU": 4.0}], 4.0),  # the smallest computes, too
        ({"gpus": 1.0}, [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 2.0}], 2.0),
        ({"tpu_chips": 8}, [{"CPU": 8.0, "TPU": 4.0}], None),
        ({}, [{"CPU": 0.0}], None),  # a head that takes no work
        ({"memory_gigabytes": 9.0}, [{"CPU": 1.0, "memory": 8e9}], None),
    ],
)
def test_what_a_task_takes_of_a_machine(needs: dict, machines: list[dict], cpus: float | None) -> None:
    empty = dict.fromkeys(connection.RESOURCES, 0.0)
    cluster = [connection.Machine(str(n), f"10.0.0.{n}", {**empty, **total}) for n, total in enumerate(machines)]
    taken = connection.demand(replace(WHOLE_MACHINE, **needs), cluster)
    assert (taken and taken["CPU"]) == cpus


ENDS_AT_ONCE = "import os; os.write(2, b'goldfold: the file x is missing'); os._exit(1)"  # reads nothing, no line break
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
CHILD = """
import threading, time
from pipelines.execution.cluster_child import end_with_parent
threading.Thread(target=end_with_parent, daemon=True).start()
print("bound", flush=True)
time.sleep(600)
"""


def test_it_dies_with_its_parent() -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, env=variables, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert "end_with_parent" in command_of(child)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not command_of(child))


@pytest.mark.parametrize("task_bytes", [10, 1_000_000])  # a pipe holds 65,536
def test_what_a_process_says_before_it_ends_at_once_is_its_error(tmp_path, task_bytes: int) -> None:
    task, lines = {"project": str(ROOT), "gpus": 0.0, "values": "x" * task_bytes}, list[str]()
    with pytest.raises(TaskError, match=r"^the file x is missing$"):
        run_process(("-c", ENDS_AT_ONCE), task, tmp_path / "start", tmp_path / "log.txt", lines.append)
    assert lines == ["goldfold: the file x is missing"] and (tmp_path / "log.txt").read_text() == lines[0]
