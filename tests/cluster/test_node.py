"""What a machine does with the files it gets, without Ray."""

import hashlib
from pathlib import Path

import pytest
from small_child import write_result

from competition.cluster.node import Machine, Worker, packed, safe_parts


def test_a_machine_stores_only_what_arrived_intact_and_below_its_folder(tmp_path: Path) -> None:
    machine = Machine(str(tmp_path), "10.0.0.1")
    digest = hashlib.sha256(b"data").hexdigest()
    assert machine.missing({"x/data/a": digest}) == ["x/data/a"]
    with pytest.raises(RuntimeError, match="x/data/a was damaged on its way"):
        machine.receive("x/data/a", digest, b"DATA")
    assert not list(tmp_path.rglob("a"))
    machine.receive("x/data/a", digest, b"data")
    assert machine.missing({"x/data/a": digest}) == []
    assert (tmp_path / "10.0.0.1" / "work" / "x/data/a").read_bytes() == b"data"
    for name in ("../a", "/a", "x/../../a"):
        with pytest.raises(ValueError, match="leaves its folder"):
            safe_parts(name)


def test_a_machine_names_complete_results_and_those_with_a_checkpoint(tmp_path: Path) -> None:
    machine = Machine(str(tmp_path), "10.0.0.1")
    write_result(machine.work / "x" / "fold0", "0")
    (machine.work / "x" / "fold1" / "checkpoints").mkdir(parents=True)
    (machine.work / "x" / "fold1" / "checkpoints" / "step-1.json").write_text("{}")
    assert machine.results(["x/fold0", "x/fold1", "x/fold2"]) == {"x/fold0": True, "x/fold1": False}
    digest, data = machine.fetch("x/fold0")
    assert hashlib.sha256(data).hexdigest() == digest
    machine.remove("x/fold0")
    assert machine.results(["x/fold0"]) == {}


def test_an_input_replaces_another_version_and_leaves_an_equal_one(tmp_path: Path) -> None:
    write_result(tmp_path / "home", "new")
    digest, data = packed("x/fold0", tmp_path / "home", tmp_path)
    worker = Worker([], {"root": str(tmp_path), "project": ""}, str(tmp_path / "log"))
    target = tmp_path / "work" / "x" / "fold0"
    write_result(target, "old")
    worker.install("x/fold0", digest, data)
    assert (target / "value.txt").read_text() == "new"
    (target / "soft").mkdir()  # what was computed from it stays with it
    worker.install("x/fold0", digest, data)
    assert (target / "soft").is_dir()
    with pytest.raises(RuntimeError, match="damaged on its way"):
        worker.install("x/fold0", digest, data[:-1])
