"""The signals that stop training, a model that predicts NaN, trials without a score, and the order after a crash."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from injection import KILLED, environment, run_code
from world import CLASSES, member, params, pixels_of

from competition.artifacts.dependencies import model_path
from pipelines.train import interrupted_last

WAIT = """
import sys, time
from pipelines.fold_training import stop_signals
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_training_to_stop(number: signal.Signals) -> None:
    process = started(WAIT)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out == f"[{int(number)}]\n"
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


def test_a_model_that_predicts_nan_after_a_finite_loss_is_no_result(tmp_path: Path) -> None:
    """The loss is computed before the update that overflows."""
    from competition.training.checkpoint import Checkpoints
    from competition.training.device import open_device
    from competition.training.loop import Diverged
    from competition.training.trainer import Images, Trainer

    labels = np.arange(24) % CLASSES
    ids = np.array([f"i{n}" for n in range(24)])
    images = Images(ids, pixels_of(labels), labels, np.arange(24) // CLASSES % 2, np.ones(24, bool))
    recipe = member(batch=12, epochs=1, learning_rate=1e38, clip_norm=0.0, warmup=0.0, loop="custom")
    trainer = Trainer(recipe, images, CLASSES, "macro_f1", open_device(params().device), 7)
    with pytest.raises(
        Diverged, match=r"predicts NaN or infinity for \d+ of 12 held-out rows; lower train.learning_rate"
    ):
        trainer.train(0, replace(recipe.train), Checkpoints(tmp_path, "x"), lambda *_: None, lambda: False)
    assert Checkpoints(tmp_path, "x").latest() is None


DIE = """
import os, signal, sys
from pathlib import Path
from competition.artifacts.locks import exclusive
path = Path(sys.argv[1])
path.parent.mkdir(parents=True)
with exclusive(path, "train cnn fold 1"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_fold_whose_process_died_is_trained_last(tmp_path: Path) -> None:
    run = SimpleNamespace(folder=tmp_path)
    assert run_code(DIE, model_path(run, 1).with_suffix(".lock")).code == KILLED
    assert interrupted_last(run, [0, 1, 2]) == [0, 2, 1]
    assert interrupted_last(run, [(0, 1), 0]) == [(0, 1), 0]


SEARCH = """
import sys
from pathlib import Path
from competition.config.params import Interval
from competition.training.tuning import search
scores = iter([float("nan"), float("inf"), -1.0, -2.0, float("nan"), -3.0])
space = {"x": Interval(low=0.0, high=1.0, log=False)}
print(search(space, 3, 1, "data", Path(sys.argv[1]), lambda values, report: next(scores), lambda *_: None)[1:])
"""


def test_the_best_trial_has_a_finite_score(tmp_path: Path) -> None:
    assert run_code(SEARCH, tmp_path / "study.log").out == "(-1.0, 3)\n"
