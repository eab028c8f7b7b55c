"""Studies of a cheap function, for tests and for the worker processes that tests start."""

import os
import time
from dataclasses import replace
from pathlib import Path

from builders import params
from optuna.trial import FrozenTrial, Trial

from competition.config.params import Dimension
from competition.config.search_space import Values
from competition.tuning.choice import finished_trials
from competition.tuning.settings import StudySettings
from competition.tuning.storage import open_storage
from competition.tuning.study import Evaluation, open_study, run_worker

SPACE = {"zoom": Dimension(low=-1.0, high=1.0), "weight_decay": Dimension(low=1e-3, high=1.0, log=True)}
OWN = {"zoom": -0.5, "weight_decay": 0.1}


def distance(values: Values, trial: Trial) -> Evaluation:
    return Evaluation(-abs(values["zoom"] - 0.3), 0.01)


def settings(trials: int, **changes) -> StudySettings:
    """changes: of the block tune, or of the settings themselves."""
    own = {key: changes.pop(key) for key in ("name", "own_values", "warm_start") if key in changes}
    plain = {"search": SPACE, "seed": 1, "sampler": "tpe", "pruner": "none", "heartbeat": 1.0, "trials": trials}
    tune = replace(params("tune.hours=0").tune, **{**plain, **changes})
    return StudySettings(**{"name": "study", "tune": tune, "own_values": OWN, **own})


def searched(journal: Path, trials: int, evaluate=distance, **changes) -> tuple[list[FrozenTrial], list[Values]]:
    """Finished trials of the study after one worker, and the points that it evaluated."""
    tried: list[Values] = []

    def recorded(values: Values, trial: Trial) -> Evaluation:
        tried.append(values)
        return evaluate(values, trial)

    study = open_study(open_storage("", journal), chosen := settings(trials, **changes))
    run_worker(study, chosen, recorded)
    return finished_trials(study.get_trials(), chosen), tried


def work_in(folder: Path, trials: int, seconds: float, url: str) -> None:
    """One worker, as a process of its own, of the study of a folder or of a database; it writes a line for each trial that it starts."""

    def evaluate(values: Values, trial: Trial) -> Evaluation:
        with (folder / f"started{os.getpid()}").open("a") as file:
            file.write(f"{sorted(values.items())}\n")
        time.sleep(seconds)
        return distance(values, trial)

    study = open_study(open_storage(url, folder / "study.log"), settings(trials))
    run_worker(study, settings(trials), evaluate)
