"""One study of a member, worked on by any number of processes: exact number of trials, no trial lost, none run twice.

Optuna runs the trials, stores them, and marks those of dead workers as failed. What it lacks is done here: its
MaxTrialsCallback lets every worker finish one trial too many, and its RetryHeartbeatStaleTrialCallback repeats neither the
trial of a worker that was interrupted nor values outside the search space, which the member's own may be.

The values of a trial follow from its number: 0 has the member's own values, then come warm starts, then the sampler's. A
trial that repeats a failed one keeps the number of that one as its origin.
"""

import os
import socket
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

import optuna
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from competition.config.faults import fault_point
from competition.config.search_space import Values, in_order, is_active, number_type
from competition.tuning.choice import ORIGIN, finished_trials, limit_reached, origin_of
from competition.tuning.samplers import PRUNERS, SeededByNumber
from competition.tuning.settings import StudySettings

# User attributes of a trial. SURPLUS: started beside the last one of the study, and ended before it did anything.
ATTEMPT, WORKER, SURPLUS = "attempt", "worker", "surplus"
POLL = 0.5  # seconds between two looks at trials of other workers


@dataclass(frozen=True)
class Evaluation:
    """score: greater is better.  error: its standard error.  facts: other JSON values, stored with the trial."""

    score: float
    error: float
    facts: dict[str, object] = field(default_factory=dict)


# Raises TrialPruned, or ArithmeticError if the loss is not finite.
Evaluate = Callable[[Values, Trial], Evaluation]


class _Surplus(Exception):
    """The study has all its trials without this one."""


def open_study(storage: BaseStorage, settings: StudySettings) -> Study:
    """The study, created if it does not exist yet. Any number of processes may call this at once.

    storage: of open_storage.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage.beat_seconds = settings.tune.heartbeat  # type: ignore[attr-defined]
    try:
        study = optuna.create_study(storage=storage, study_name=settings.name, direction="maximize")
        # Warm starts are read once: later workers may find other studies to start from.
        study.set_user_attr("points", settings.points)
        study.set_user_attr("folds", list(settings.folds))
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(storage=storage, study_name=settings.name)
    points = study.user_attrs.get("points", settings.points)
    study.sampler = SeededByNumber(settings.tune.sampler, settings.tune.seed, points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are marked experimental
        study.pruner = PRUNERS[settings.tune.pruner]()
    return study


def run_worker(
    study: Study,
    settings: StudySettings,
    evaluate: Evaluate,
    on_trial: Callable[[Study, FrozenTrial], None] = lambda *_: None,
) -> None:
    """Run trials of the study in this process until all are finished or a limit is reached.

    While other workers run the last trials this one waits, because it takes over if one of them dies.
    on_trial: called with the study and each trial that this worker has finished.
    """

    def objective(trial: Trial) -> float:
        _claim(study, settings, trial)
        fault_point("tune.before_trial")
        try:
            result = evaluate(suggest(trial, settings), trial)
            if not isfinite(result.score):
                raise ArithmeticError(f"the score is {result.score}")
        except ArithmeticError as error:
            trial.set_user_attr("diverged", str(error))
            raise optuna.TrialPruned from None  # as a failed trial it would teach the sampler nothing
        fault_point("tune.before_score")
        for key, value in {**result.facts, "error": result.error}.items():
            trial.set_user_attr(key, value)
        return result.score

    def report(study: Study, trial: FrozenTrial) -> None:
        if SURPLUS not in trial.user_attrs:
            on_trial(study, trial)

    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heartbeats are marked experimental
            optuna.storages.fail_stale_trials(study)
        trials = study.get_trials(deepcopy=False)
        if len(finished_trials(trials, settings)) >= settings.total or limit_reached(trials, settings):
            return
        lost = _lost_trials(trials, settings)
        for trial in lost:
            attributes = {ORIGIN: origin_of(trial), ATTEMPT: trial.user_attrs.get(ATTEMPT, 0) + 1}
            study.enqueue_trial({**trial.system_attrs.get("fixed_params", {}), **trial.params}, user_attrs=attributes)
        alive = [trial for trial in trials if trial.state != TrialState.FAIL]
        if lost or len(alive) < settings.total or any(trial.state == TrialState.WAITING for trial in alive):
            try:
                study.optimize(objective, n_trials=1, catch=(_Surplus,), callbacks=[report])
            except ValueError as error:  # this process was suspended: others took it for dead and repeat its trial
                if "Cannot tell a FAIL trial" not in str(error):
                    raise
        else:
            time.sleep(POLL)


def _lost_trials(trials: list[FrozenTrial], settings: StudySettings) -> list[FrozenTrial]:
    """Failed trials that must be repeated and are not yet.

    After `retries` attempts new values are drawn, because the values may be what kills the worker. The member's own values
    are kept: they are what all others are compared with.
    """
    alive = {origin_of(trial) for trial in trials if trial.state != TrialState.FAIL}
    last_attempts = {
        origin_of(trial): trial for trial in trials if origin_of(trial) not in alive and SURPLUS not in trial.user_attrs
    }
    return [
        trial
        for origin, trial in last_attempts.items()
        if origin == 0 or trial.user_attrs.get(ATTEMPT, 0) < settings.tune.retries
    ]


def _claim(study: Study, settings: StudySettings, trial: Trial) -> None:
    """Raise _Surplus if earlier trials are enough, or one of them repeats the same trial.

    Two workers that look at the same moment both start the last trial. Numbers are given by the storage, once each and in
    order, so all workers agree which trial is the surplus one.
    """
    trial.set_user_attr(WORKER, f"{socket.gethostname()}/{os.getpid()}")
    trials = study.get_trials(deepcopy=False)
    earlier = {origin_of(t) for t in trials if t.number < trial.number and t.state != TrialState.FAIL}
    if len(earlier) >= settings.total or origin_of(trial) in earlier:
        trial.set_user_attr(SURPLUS, True)
        raise _Surplus


def suggest(trial: Trial, settings: StudySettings) -> Values:
    """Values of all active dimensions.

    The member's own value may lie outside the search space: it is one of the choices, and a fixed number of its trial.
    """
    values: Values = {}
    for key in in_order(settings.tune.search):
        dimension = settings.tune.search[key]
        if not is_active(dimension, values):
            continue
        if dimension.choices:
            own = settings.own_values[key]
            choices = dimension.choices if own in dimension.choices else (*dimension.choices, own)
            values[key] = trial.suggest_categorical(key, choices)
            continue
        low, high, step, log = dimension.low or 0.0, dimension.high or 0.0, dimension.step, dimension.log
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the member's own value, if it lies outside the interval
            if number_type(key) is int:
                values[key] = trial.suggest_int(key, int(low), int(high), step=int(step or 1), log=log)
            else:
                values[key] = trial.suggest_float(key, low, high, step=step, log=log)
    return values
