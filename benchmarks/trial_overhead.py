"""What a trial of a study costs beside its training steps, on digits, once its network is compiled.

    python -m benchmarks.trial_overhead --trials 5

Runs trials of the member cnn of params.yaml in this process and compares the time of each with the time inside the engine's
training steps, both in processor time of all threads, which other programs on the machine hardly change. The rest is resetting
weights, shuffling and feeding images, and scoring held-out rows for the pruner. The first trial, which builds and compiles the
network, is printed apart.
"""

import argparse
import io
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory(prefix="trials") as folder:
        job = prepared_job(Path(folder))
        ratios = measure(job, options.trials)
    print(
        f"SPEED: a trial after the first of its network takes {np.median(ratios):.3f} times its training steps "
        f"({min(ratios):.3f} to {max(ratios):.3f}) in processor time, target at most 1.1; load {os.getloadavg()[0]:.1f}"
    )
    return 0


def prepared_job(folder: Path) -> Any:
    from competition.config.params_file import load_params
    from competition.workspace.workspace import Workspace
    from pipelines.main_job import download, prepare
    from pipelines.terminal.options import Options
    from pipelines.terminal.runner import Job

    path, work = ROOT / "params.yaml", folder / "work" / "digits"
    work.mkdir(parents=True)
    job = Job(Workspace(work, load_params(path)), Options(params=path), folder / "submissions")
    with redirect_stdout(io.StringIO()):
        download.run(job)
        prepare.run(job)
    return job


def measure(job: Any, trials: int) -> list[float]:
    """Time of each trial after the first, divided by its time in training steps."""
    import optuna

    from pipelines.terminal.trainer import open_trial_runner

    study = optuna.create_study(direction="maximize")  # which prunes no trial before it has others to compare it with
    runner, steps, ratios = open_trial_runner(job, "cnn"), [0.0], []
    for number in range(trials + 1):
        values = {"learning_rate": 0.004 * 0.9**number}
        started, steps[0] = time.process_time(), 0.0
        runner.evaluate(values, study.ask())
        seconds = time.process_time() - started
        if number == 0:
            print(f"first trial, with building and compiling: {seconds:.1f} s")
            time_steps(runner, steps)
        else:
            ratios.append(seconds / steps[0])
            print(f"trial {number}: {seconds:.2f} s, in steps {steps[0]:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
    return ratios


def time_steps(runner: Any, seconds: list[float]) -> None:
    """Let the engine of the only trainer add the time of its training steps to seconds[0]."""
    (trainer,) = runner._trainers.values()
    train = trainer.engine.train

    def timed(*arguments: Any) -> float:
        started = time.process_time()
        loss = train(*arguments)
        seconds[0] += time.process_time() - started
        return loss

    trainer.engine.train = timed


if __name__ == "__main__":
    sys.exit(main())
