"""Memory of the machine and of the device: what training takes, what is left, and the largest batch that fits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import CLASSES, member, params

from competition.training import engines
from competition.training.device import Device, open_device
from competition.training.engine import CompiledIn
from competition.training.memory import (
    available_bytes,
    memory_warning,
    step_fits,
    too_large,
    training_bytes,
)

LARGE = replace(params().members["cnn"], image_size=512, train=params("train.batch=128").train)
GB, V1 = 10**9, "sys/fs/cgroup/memory/memory"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.stat": "anon 5\nfile 7\n"}, 8_192_000_000),
        ({"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.stat": "anon 1000\nfile 1900\n"}, 2_000),
        ({f"{V1}.limit_in_bytes": "3000\n", f"{V1}.stat": "rss 1\ntotal_rss 2900\n"}, 100),
        ({"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.stat": "anon 4000\n"}, 0),
    ],
    ids=["no limit", "a limit", "a limit of version 1", "more than the limit"],
)
def test_a_container_leaves_its_limit_without_what_its_processes_hold(tmp_path: Path, files, available) -> None:
    assert available_bytes(write(tmp_path, files)) == available


def test_batches_that_do_not_fit_are_named_and_none_where_the_memory_is_unknown(tmp_path: Path) -> None:
    assert 2 * GB < training_bytes(LARGE, 3) < 2.5 * GB and available_bytes(tmp_path) is None
    assert memory_warning("cnn", LARGE, 3, 3 * GB) == memory_warning("cnn", LARGE, 3, None) == ""
    assert "take 2.1 GB of memory beside the network, 1.0 GB are avail" in memory_warning("cnn", LARGE, 3, GB)


def test_the_error_names_the_batch_and_the_number_of_parts_that_fit() -> None:
    message = str(too_large("b6", member(batch=256), 8, lambda batch: batch <= 100))
    assert all(text in message for text in ("the largest that fits is 96", "accumulate: 3,", "or train.batch: 96"))
    in_parts = str(too_large("b6", member(batch=256, accumulate=4), 8, lambda batch: batch < 30))
    assert "the largest that fits is 24: set train.accumulate: 11," in in_parts
    assert "so does the smallest batch" in str(too_large("b6", member(batch=256), 8, lambda _: False))


def test_a_step_is_trained_to_see_whether_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    device, make = open_device(params().device), engines.make_engine

    def exhausted(network: Any, device: Device, compiled_in: CompiledIn) -> object:
        if compiled_in.batch > 4:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.")
        return make(network, device, compiled_in)

    monkeypatch.setattr(engines, "make_engine", exhausted)
    assert step_fits(member(), CLASSES, device, 4) and not step_fits(member(), CLASSES, device, 8)
