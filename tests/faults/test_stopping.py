"""The signals that stop training, trials without a score, and the order after a crash."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from injection import KILLED, environment, run_code
from stages import new_workspace

from competition.workspace.dependencies import FoldModel, fold_manifest_path
from pipelines.execution.training import interrupted_last

WAIT = """
import sys, time
from competition.training.fault_tolerance import stop_signals
received = []
try:
    with stop_signals(received):
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
            if received and len(sys.argv) == 1:
                break
except KeyboardInterrupt:
    print("at once")
print(received)
"""


def test_the_first_signal_asks_training_to_stop() -> None:
    process = started(WAIT)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out == f"[{int(signal.SIGTERM)}]\n"
    assert "stopping at the next checkpoint; Ctrl-C or SIGTERM once more stops at once" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_stops_at_once(number: signal.Signals) -> None:
    process = started(WAIT, "forever")
    assert process.stderr is not None
    process.send_signal(number)
    assert "stopping" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (("at once\n[2]\n", 0) if number == signal.SIGINT else ("", -signal.SIGTERM))


def started(code: str, *arguments: str) -> "subprocess.Popen[str]":
    prelude = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", prelude + code, *arguments]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment())
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


DIE = """
import os, signal, sys
from pathlib import Path
from competition.files.locks import exclusive
path = Path(sys.argv[1])
path.parent.mkdir(parents=True)
with exclusive(path, "train cnn fold 1"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ctrl_c_outside_of_training_ends_a_verb_with_its_exit_code(tmp_path: Path) -> None:
    handle = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    press = "import pipelines.main_job.train as stage; stage.run = lambda job: os.kill(os.getpid(), signal.SIGINT)"
    result = new_workspace(tmp_path).run("train", code=f"{handle}\n{press}")
    assert (result.code, result.err) == (130, "goldfold: stopped; run the same command again to continue\n")


def test_a_fold_whose_process_died_is_trained_last(tmp_path: Path) -> None:
    run = SimpleNamespace(folder=tmp_path)
    models = [FoldModel(fold_manifest_path(run, fold), {}, fold, "") for fold in (1, 0, (0, 1))]
    assert run_code(DIE, models[0].manifest.with_suffix(".lock")).code == KILLED
    assert [model.fold for model in interrupted_last(run, models)] == [0, (0, 1), 1]
