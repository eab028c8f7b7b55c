"""What training takes of main memory, against what the machine or a container leaves."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROOT

from competition.config.params_file import load_params
from competition.training.memory import available_bytes, memory_warning, training_bytes

CNN = load_params(ROOT / "params.yaml").members["cnn"]
LARGE = replace(CNN, image_size=512, train=replace(CNN.train, batch=128))
GB, V1 = 10**9, "sys/fs/cgroup/memory/memory"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8_192_000_000),
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.stat": "anon 5\nfile 7\n"}, 8_192_000_000),
        ({"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.stat": "anon 1000\nfile 1900\n"}, 2_000),
        ({f"{V1}.limit_in_bytes": "3000\n", f"{V1}.stat": "rss 1\ntotal_rss 2900\n"}, 100),
        ({"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.stat": "anon 4000\n"}, 0),
    ],
    ids=["no container", "no limit", "a limit", "a limit of version 1", "more than the limit"],
)
def test_a_container_leaves_its_limit_without_what_its_processes_hold(tmp_path: Path, files, available) -> None:
    assert available_bytes(write(tmp_path, files)) == available


def test_without_the_files_of_linux_the_memory_is_unknown(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None and memory_warning("cnn", LARGE, 3, None) == ""


def test_batches_that_do_not_fit_are_named_with_what_to_lower() -> None:
    assert 2 * GB < training_bytes(LARGE, 3) < 2.5 * GB
    assert memory_warning("cnn", LARGE, 3, 3 * GB) == ""
    assert memory_warning("cnn", LARGE, 3, GB).startswith(
        "cnn: batches of 128 images of 512 px take 2.1 GB of memory beside the network, 1.0 GB are available; lower train.batch"
    )
