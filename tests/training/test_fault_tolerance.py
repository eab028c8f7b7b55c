"""A hang ends the process so that it can be resumed; a lost device is opened again; no other error is retried. What memory allows."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from builders import ROOT, member, params
from stages import Workspace

from competition.config.errors import UserError
from competition.training.fault_tolerance import DEVICE_LOSS, OUT_OF_MEMORY, is_caused_by, reason_of_loss
from competition.training.memory import available_bytes, memory_warning, too_large

LOST = tf.errors.UnavailableError(None, None, "Socket closed")


def caused_by(error: Exception) -> Exception:
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = error
    return wrapped


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LOST, "device"),
        (caused_by(LOST), "device"),
        (RuntimeError("UNAVAILABLE: TPU initialization failed"), "device"),
        (tf.errors.InternalError(None, None, "failed to connect to all addresses"), "device"),
        (tf.errors.ResourceExhaustedError(None, None, "failed to allocate"), "memory"),
        (caused_by(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")), "memory"),
        (ValueError("shapes differ"), "other"),
    ],
)
def test_a_lost_device_and_exhausted_memory_are_recognised_by_the_errors_of_the_frameworks(error, kind) -> None:
    assert is_caused_by(error, DEVICE_LOSS) == (kind == "device")
    assert is_caused_by(error, OUT_OF_MEMORY) == (kind == "memory")


def test_only_a_lost_device_is_opened_again_a_limited_number_of_times() -> None:
    assert reason_of_loss(LOST, attempt=2, retries=2).startswith("UnavailableError: ")
    with pytest.raises(UserError, match="the device was lost 2 times, most recently with: UnavailableError"):
        reason_of_loss(LOST, attempt=2, retries=1)
    with pytest.raises(ValueError, match="shapes differ"):
        reason_of_loss(ValueError("shapes differ"), attempt=1, retries=5)


HANGING = """
import ctypes, time
from competition.training.fault_tolerance import still_alive
still_alive(0)  # never
for _ in range(4):
    still_alive(1.0)
    time.sleep(0.5)
print("alive", flush=True)
ctypes.PyDLL(None).sleep(30)  # holds the interpreter's lock
"""


def test_a_hang_of_all_python_threads_ends_the_process() -> None:
    process = subprocess.run([sys.executable, "-c", HANGING], cwd=ROOT, capture_output=True, text=True, timeout=25)
    assert process.returncode == 1 and process.stdout == "alive\n"
    assert "Timeout" in process.stderr and 'File "<string>"' in process.stderr


UNSTEADY = """
import time
import tensorflow as tf
from competition.training.engine_tensorflow import TensorFlowEngine
from competition.training import fault_tolerance
fault_tolerance.FIRST_PAUSE = 0.1
calls, real = [], TensorFlowEngine.take_steps
def unsteady(engine, *arguments):
    calls.append(id(engine))
    if len(calls) == 4:
        raise tf.errors.UnavailableError(None, None, "Socket closed")
    if len(calls) == 6:
        assert len(set(calls)) == 2  # another engine
        fault_tolerance.still_alive(3)  # instead of 30
        time.sleep(600)
    return real(engine, *arguments)
TensorFlowEngine.take_steps = unsteady
"""


@pytest.mark.timeout(900)  # the fixture may have to be built first
def test_training_resumes_after_a_lost_device_and_ends_when_it_hangs(untrained: Workspace) -> None:
    arguments = ("--member", "slim", "--fold", "0")
    ran = untrained.run("train", *arguments, sets="device.hang_seconds=30", code=UNSTEADY)
    assert ran.code == 1, ran.err
    assert "the device was lost (UnavailableError: Socket closed); opening it again, try 1 of 3" in ran.out
    assert "Timeout" in ran.err and "in unsteady" in ran.err and "in train_models" in ran.err  # the stacks of the hang
    assert any(untrained.work.glob("members/slim/*/fold0/checkpoints/*.json"))


LARGE = replace(params().members["cnn"], image_size=512, train=params("train.batch=128").train)
GB = 10**9


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.stat": "anon 5\nfile 7\n"}, 8_192_000_000),
        ({"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.stat": "anon 1000\nfile 1900\n"}, 2_000),
        ({"sys/fs/cgroup/memory.max": "3000\n", "sys/fs/cgroup/memory.stat": "anon 4000\n"}, 0),
    ],
    ids=["no limit", "a limit", "more than the limit"],
)
def test_a_container_leaves_its_limit_without_what_its_processes_hold(tmp_path: Path, files, available) -> None:
    machine = {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n"}
    for name, text in (machine | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == available


def test_batches_that_do_not_fit_are_named_and_none_where_the_memory_is_unknown(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    assert memory_warning("cnn", LARGE, 3 * GB) == memory_warning("cnn", LARGE, None) == ""
    assert "take 2.1 GB of memory beside the network, 1.0 GB are avail" in memory_warning("cnn", LARGE, GB)


def test_the_error_names_the_batch_and_twice_as_many_parts() -> None:
    message = str(too_large("b6", member(batch=256, accumulate=2)))
    assert "a batch of 256 images of" in message and "set train.accumulate: 4," in message
