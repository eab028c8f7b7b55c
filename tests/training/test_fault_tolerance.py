"""A hang ends the process so that it can be resumed; a lost device is opened again; no other error is retried."""

import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from builders import ROOT
from stages import Workspace

from competition.config.errors import UserError
from competition.training import fault_tolerance
from competition.training.fault_tolerance import Watchdog, is_device_loss
from competition.training.memory import is_out_of_memory

LOST = tf.errors.UnavailableError(None, None, "Socket closed")


def caused_by(error: Exception) -> Exception:
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = error
    return wrapped


EXHAUSTED = "RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LOST, "device"),
        (caused_by(LOST), "device"),
        (RuntimeError("UNAVAILABLE: TPU initialization failed"), "device"),
        (tf.errors.InternalError(None, None, "failed to connect to all addresses"), "device"),
        (tf.errors.ResourceExhaustedError(None, None, "failed to allocate"), "memory"),
        (caused_by(RuntimeError(EXHAUSTED)), "memory"),
        (ValueError("shapes differ"), "other"),
    ],
)
def test_a_lost_device_and_exhausted_memory_are_recognised_by_the_errors_of_the_frameworks(error, kind) -> None:
    assert (is_device_loss(error), is_out_of_memory(error)) == (kind == "device", kind == "memory")


def test_a_lost_device_is_opened_again_a_limited_number_of_times_and_no_other_error_is_retried(monkeypatch) -> None:
    monkeypatch.setattr(fault_tolerance, "FIRST_PAUSE", 0.0)
    lines, begun = list[str](), list[int]()

    def failing(error: Exception, times: int) -> Callable[[Callable[[], None]], None]:
        begun.clear()

        def work(alive: Callable[[], None]) -> None:
            begun.append(1)
            if len(begun) <= times:
                raise error

        return work

    fault_tolerance.train_with_retries(failing(LOST, 2), 0, 2, lines.append)
    assert len(begun) == 3 and lines[1].endswith("opening it again, try 2 of 2")
    with pytest.raises(UserError, match=r"the device was lost 2 times, most recently with: UnavailableError"):
        fault_tolerance.train_with_retries(failing(LOST, 9), 0, 1, lines.append)
    assert len(begun) == 2
    with pytest.raises(ValueError, match="shapes differ"):
        fault_tolerance.train_with_retries(failing(ValueError("shapes differ"), 9), 0, 5, lines.append)
    assert len(begun) == 1


def test_a_watchdog_calls_once_without_heartbeats_and_never_with_them() -> None:
    called: list[float] = []
    with Watchdog(0.5, lambda: called.append(time.monotonic())) as heartbeat, Watchdog(0, lambda: called.append(0.0)):
        for _ in range(12):
            time.sleep(0.05)
            heartbeat()
        assert called == []
        time.sleep(1.2)
    assert len(called) == 1


def test_a_hang_of_all_python_threads_ends_the_process() -> None:
    code = """
    import ctypes, faulthandler
    from competition.training import fault_tolerance
    later = faulthandler.dump_traceback_later
    fault_tolerance.faulthandler.dump_traceback_later = lambda seconds, exit: later(seconds - 60, exit=exit)
    with fault_tolerance.Watchdog(0.5, lambda: None):
        ctypes.PyDLL(None).sleep(30)  # holds the interpreter's lock
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=25
    )
    assert process.returncode == 1 and "Timeout" in process.stderr and 'File "<string>"' in process.stderr


@pytest.mark.timeout(900)  # the fixture may have to be built first
def test_training_resumes_after_a_lost_device_and_ends_when_it_hangs(finished: Workspace, tmp_path: Path) -> None:
    workspace = finished.copy_to(tmp_path)
    shutil.rmtree(workspace.work / "members")
    code = """
    import time
    import tensorflow as tf
    from competition.training.engine_tensorflow import TensorFlowEngine
    from competition.training import fault_tolerance
    fault_tolerance.FIRST_PAUSE = 0.1
    calls, watchdogs, real = [], [], TensorFlowEngine.train
    class Recorded(fault_tolerance.Watchdog):
        def __enter__(self):
            watchdogs.append(self)
            return super().__enter__()
    fault_tolerance.Watchdog = Recorded
    def unsteady(engine, *arguments):
        calls.append(id(engine))
        if len(calls) == 4:
            raise tf.errors.UnavailableError(None, None, "Socket closed")
        if len(calls) == 6:
            assert len(set(calls)) == 2  # another engine
            watchdogs[-1]._silent_seconds += 27  # of the 30
            time.sleep(600)
        return real(engine, *arguments)
    TensorFlowEngine.train = unsteady
    """
    arguments = ("--member", "slim", "--fold", "0")
    ran = workspace.run("train", *arguments, sets="device.hang_seconds=30", code=textwrap.dedent(code))
    assert ran.code == 5, ran.err
    assert "the device was lost (UnavailableError: Socket closed); opening it again, try 1 of 3" in ran.out
    assert "goldfold: no step for 30 s (device.hang_seconds)" in ran.err
    assert "in unsteady" in ran.err and "in train_fold" in ran.err  # the stacks of the hang
    assert any(workspace.work.glob("members/slim/*/fold0/checkpoints/*.json"))
