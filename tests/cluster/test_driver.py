"""The driver on two real Ray nodes, with a computing process that computes nothing."""

import contextlib
import hashlib
import io
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ray_nodes import RayCluster, command_of
from small_child import write_result

from competition.cluster import connection
from competition.cluster.driver import run_works
from competition.cluster.node import packed
from competition.cluster.schedule import Task
from competition.cluster.simulation import ONE_AT_A_TIME
from competition.cluster.work import Callbacks, Setup, Status, Work
from competition.config.errors import UserError

MEMBERS = ("a", "b")


def has_ended(process: int) -> bool:
    """Wait at most 20 s for the end of a process."""
    end = time.monotonic() + 20
    while command_of(process) and time.monotonic() < end:
        time.sleep(0.05)
    return not command_of(process)


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A connection to two nodes with one CPU each."""
    pytest.importorskip("ray", reason="Ray is not installed (goldfold[cluster])")
    cluster = RayCluster(tmp_path_factory.mktemp("nodes"))
    try:
        cluster.start("127.0.0.4")
        cluster.start("127.0.0.5")
        connected = connection.connect(cluster.address)
        yield connected
        connected.shutdown()
    finally:
        cluster.stop()


@dataclass
class Bench:
    """A folder for the machines, and what came home."""

    folder: Path
    ray: object
    files: dict[str, tuple[str, Path]] = field(default_factory=dict)
    retries: int = 2
    delivered: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    status: list[Status] = field(default_factory=list)

    def run(self, *works: Work, show=None) -> None:
        with io.BytesIO() as buffer:
            with zipfile.ZipFile(buffer, "w") as writer:
                writer.write(Path(__file__).with_name("small_child.py"), "small_child.py")
            project = buffer.getvalue()
        self.tries.mkdir(exist_ok=True)
        setup = Setup(
            project, hashlib.sha256(project).hexdigest(), self.files, (), str(self.folder / "machines"),
            ("-m", "small_child"), {"shared_by_all": str(self.tries), "checkpoints": ""},
            dict.fromkeys(MEMBERS, ONE_AT_A_TIME), self.retries, 0.0,
        )  # fmt: skip
        show = show or self.status.append
        callbacks = Callbacks(self.pack, self.deliver, self.lines.append, show, lambda *_: None)
        run_works(self.ray, setup, works, callbacks, public=False)

    @property
    def tries(self) -> Path:
        return self.folder / "tries"

    def pack(self, unit: str) -> tuple[str, bytes]:
        return packed(unit, self.folder / "home" / unit, self.folder)

    def deliver(self, work: Work, digest: str, data: bytes) -> None:
        assert hashlib.sha256(data).hexdigest() == digest and work.unit not in self.delivered
        target = self.folder / "home" / work.unit
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            assert zipped.namelist() == ["value.txt", "manifest.json"]
            write_result(target, zipped.read("value.txt").decode())
        self.delivered[work.unit] = (target / "value.txt").read_text()

    def starts(self, unit: str) -> list[tuple[str, int]]:
        """(machine, process) of each time the task was started."""
        path = self.tries / unit.replace("/", "-")
        lines = path.read_text().splitlines() if path.exists() else []
        return [(Path(line.split()[0]).name, int(line.split()[1])) for line in lines]


@pytest.fixture
def bench(ray, tmp_path: Path) -> Bench:
    return Bench(tmp_path, ray)


def work(name: str, do: str = "work", after: tuple[str, ...] = (), seconds: float = 10.0, **request: object) -> Work:
    """The task `a1` belongs to member a; its result is the folder x/a1."""
    unit = f"x/{name}"
    inputs = tuple(f"x/{other}" for other in after)
    task = Task(name, name[0], seconds, frozenset(after))
    return Work(task, unit, {"unit": unit, "do": do, "reads": inputs, **request}, inputs)


def test_every_task_is_done_once_and_each_member_stays_in_its_process(bench: Bench) -> None:
    names = [f"{member}{n}" for member in MEMBERS for n in range(4)]
    bench.run(*map(work, names))
    assert bench.delivered == {f"x/{name}": name[1] for name in names}
    starts = {name: bench.starts(f"x/{name}") for name in names}
    assert all(len(times) == 1 for times in starts.values())
    processes = {times[0]: name[0] for name, times in starts.items()}  # (machine, process) -> member
    assert len(processes) == len({(machine, member) for (machine, _), member in processes.items()})
    assert {machine for times in starts.values() for machine, _ in times} == {"127.0.0.4", "127.0.0.5"}
    assert all(has_ended(process) for _, process in processes)
    assert (bench.status[-1].done, bench.status[-1].total) == (8, 8)


def test_a_task_gets_the_results_that_it_reads_and_starts_after_them(bench: Bench) -> None:
    bench.run(work("b1", after=("a1", "a2")), work("a1"), work("a2"))
    assert bench.delivered["x/b1"] == "1+2+1"


def test_a_crashed_process_gets_its_task_again_and_then_another_machine_does(bench: Bench) -> None:
    bench.run(work("a1", "crash", times=2), work("a2"))
    assert bench.delivered == {"x/a1": "1", "x/a2": "2"}
    first, second, third = [machine for machine, _ in bench.starts("x/a1")]
    assert first == second != third
    (sentence, _) = [line for line in bench.lines if "a1 is started again" in line]
    assert "ended with code -11" in sentence and "(try 2 of 3)" in sentence


def test_tries_are_bounded_and_the_other_tasks_are_done(bench: Bench) -> None:
    with pytest.raises(
        UserError, match=r"a1: started 3 times without a result.*; 1 more failed; everything else is done"
    ):
        bench.run(work("a1", "crash"), work("b2", after=("a1",)), work("a3"))
    assert bench.delivered == {"x/a3": "3"} and len(bench.starts("x/a1")) == 3
    assert any("b2 failed: it needs a1, which failed" in line for line in bench.lines)


def test_an_error_of_the_machine_is_tried_again_and_an_error_of_the_task_is_not(bench: Bench) -> None:
    with pytest.raises(UserError, match="a1: a ValueError"):
        bench.run(work("a1", "ValueError"), work("a2", "OSError", times=1))
    assert len(bench.starts("x/a1")) == 1
    assert len(bench.starts("x/a2")) == 2 and bench.delivered == {"x/a2": "2"}


def test_a_task_that_no_machine_can_start_is_given_up(bench: Bench) -> None:
    with pytest.raises(UserError, match=r"a1: started 3 times without a result.*not JSON serializable"):
        bench.run(work("a1", when=datetime.now(UTC)), work("b1"))
    assert bench.delivered == {"x/b1": "1"}


def test_a_result_that_a_killed_driver_left_on_a_machine_is_fetched_and_not_computed(bench: Bench) -> None:
    write_result(bench.folder / "machines" / "127.0.0.5" / "work" / "x" / "a1", "left")
    bench.run(work("a1"), work("a2"))
    assert bench.delivered == {"x/a1": "left", "x/a2": "2"}
    assert bench.starts("x/a1") == []
    assert not (bench.folder / "machines" / "127.0.0.5" / "work" / "x" / "a1").exists()


def test_ctrl_c_ends_all_processes(bench: Bench) -> None:
    def interrupt(status: Status) -> None:
        if len(status.rows) == 2 and all(bench.starts(f"x/{name}") for name in ("a1", "b1")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(work("a1", "sleep"), work("b1", "sleep"), show=interrupt)
    for name in ("a1", "b1"):
        ((_, process),) = bench.starts(f"x/{name}")
        assert has_ended(process)
    assert bench.lines == ["cluster: stopping; running tasks: 2"]


def test_data_are_sent_to_a_machine_once_and_damaged_files_again(bench: Bench) -> None:
    path = bench.folder / "data.bin"
    path.write_bytes(b"data")
    bench.files["x/data/data.bin"] = (hashlib.sha256(b"data").hexdigest(), path)
    bench.run(work("a1"))
    copies = [bench.folder / "machines" / machine / "work/x/data/data.bin" for machine in ("127.0.0.4", "127.0.0.5")]
    assert sum("receives 1 files" in line for line in bench.lines) == sum(copy.is_file() for copy in copies) >= 1
    for copy in copies:
        with contextlib.suppress(FileNotFoundError):
            copy.write_bytes(b"DATA") if copy is copies[0] else None
    bench.lines.clear()
    bench.run(work("a2"), work("b1"))
    assert all(copy.read_bytes() == b"data" for copy in copies if copy.is_file())


def test_a_need_that_no_machine_has_and_a_public_address_are_errors(ray) -> None:
    machines = connection.alive_machines(ray)
    connection.check_needs(machines, {"a": ONE_AT_A_TIME})
    connection.check_addresses(machines, public=False)
    with pytest.raises(UserError, match=r"a fold model of a, which needs 8 TPU; the largest of 2 machines have 1 CPU"):
        connection.check_needs(machines, {"a": replace(ONE_AT_A_TIME, tpu_chips=8)})
    elsewhere = replace(machines[0], address="8.8.8.8")
    connection.check_addresses([elsewhere], public=True)
    with pytest.raises(UserError, match=r"8\.8\.8\.8 is a public address, and whoever reaches Ray's ports runs code"):
        connection.check_addresses([elsewhere], public=False)
