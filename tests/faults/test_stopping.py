"""The signals that stop training and other verbs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from injection import environment
from stages import new_workspace

WAIT = """
import signal, sys, time
from competition.training.fault_tolerance import stop_signals
signal.signal(signal.SIGINT, signal.default_int_handler)
received = []
try:
    with stop_signals(received):
        print("ready", flush=True)
        while not received or sys.argv[1] == "2":
            time.sleep(0.01)
except KeyboardInterrupt:
    print("at once")
print(received)
"""


@pytest.mark.parametrize(
    ("number", "times", "code", "out"),
    [
        (signal.SIGTERM, 1, 0, "[15]\n"),
        (signal.SIGTERM, 2, -signal.SIGTERM, ""),
        (signal.SIGINT, 2, 0, "at once\n[2]\n"),
    ],
)
def test_the_first_signal_asks_training_to_stop_and_the_second_one_stops_at_once(number, times, code, out) -> None:
    command = [sys.executable, "-c", WAIT, str(times)]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment())
    assert process.stdout is not None and process.stdout.readline() == "ready\n" and process.stderr is not None
    process.send_signal(number)
    assert "stopping at the next checkpoint" in process.stderr.readline() + process.stderr.readline()
    if times == 2:
        process.send_signal(number)
    assert (process.communicate(timeout=60)[0], process.returncode) == (out, code)


def test_ctrl_c_outside_of_training_ends_a_verb_with_its_exit_code(tmp_path: Path) -> None:
    handle = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    press = "import pipelines.main_job.train as stage; stage.run = lambda job: os.kill(os.getpid(), signal.SIGINT)"
    result = new_workspace(tmp_path).run("train", code=f"{handle}\n{press}")
    assert (result.code, result.err) == (130, "goldfold: stopped; run the same command again to continue\n")
