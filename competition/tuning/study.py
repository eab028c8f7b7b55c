"""One study of a member, worked on by any number of processes: exact number of trials, no trial lost, none run twice.

Every trial of the study is enqueued before it runs and has a ticket: 0 for the member's own values, then warm starts, then
free ones whose values the sampler draws. The storage hands each enqueued trial to one worker only, so n tickets give n
trials however many workers ask. The trial of a dead worker is marked as failed and its ticket is enqueued again.
"""

import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf, isfinite
from pathlib import Path
from typing import Any, Protocol

from competition.config.faults import point
from competition.config.params import Dimension
from competition.config.search_space import Values, in_order, is_active, is_whole
from competition.tuning.samplers import make_pruner, make_sampler

# User attributes of a trial.
TICKET, ATTEMPT, WORKER, BEAT, DISCARDED = "ticket", "attempt", "worker", "beat", "discarded"
POLL = 0.5  # seconds between two looks at trials of other workers


@dataclass(frozen=True)
class StudySettings:
    """What a worker needs to know about its study."""

    name: str  # equal for all workers of one study
    search: Mapping[str, Dimension]
    trials: int
    seed: int
    sampler: str
    pruner: str
    own_values: Values  # the member's own values, tried first
    warm_start: Sequence[Values] = ()  # tried next
    folds: Sequence[int] = ()  # whose labels take part in the choice, those behind the warm starts included
    grid: Sequence[Values] = ()  # for the sampler grid: every point
    two_objectives: bool = False  # the second one is the training time, in seconds
    hours: float = 0.0  # of all trials together, divided by the workers; 0 = no limit
    patience: int = 0  # finished trials without an improvement beyond noise; 0 = no limit
    workers: int = 1
    heartbeat: float = 60.0  # seconds
    retries: int = 1  # of a dead worker's trial with the same values

    @property
    def points(self) -> list[Values]:
        """Values of the first tickets; the sampler draws those of the others."""
        first = [self.own_values, *self.warm_start]
        return first + [values for values in self.grid if values not in first]

    @property
    def total(self) -> int:
        """Number of tickets: fewer than `trials` if a grid has fewer points."""
        return min(self.trials, len(self.points)) if self.grid else self.trials


@dataclass(frozen=True)
class Evaluation:
    """score: greater is better.  error: its standard error.  facts: other JSON values, stored with the trial."""

    score: float
    error: float
    seconds: float  # of training, without compiling
    facts: Mapping[str, Any] = field(default_factory=dict)


class Pruned(Exception):
    """A trial was stopped early. `facts` are stored with it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)


class Report(Protocol):
    """Reports a score of a running trial and returns True if the trial should be pruned."""

    def __call__(self, score: float, step: int) -> bool: ...


Evaluate = Callable[[Values, Report], Evaluation]  # raises Pruned, or ArithmeticError if the loss is not finite


def open_study(storage: Any, settings: StudySettings) -> Any:
    """The study, created with its tickets if it does not exist yet. Any number of processes may call this at once."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    directions = ["maximize", "minimize"] if settings.two_objectives else ["maximize"]
    try:
        study = optuna.create_study(storage=storage, study_name=settings.name, directions=directions)
        # Warm starts are read once: later workers may find other studies to start from.
        study.set_user_attr("points", settings.points)
        study.set_user_attr("folds", list(settings.folds))
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(storage=storage, study_name=settings.name)
        if [direction.name.lower() for direction in study.directions] != directions:
            raise ValueError(
                f"study {settings.name}: expected directions {directions}, found {study.directions}"
            ) from None
        _wait_for_tickets(study)
    study.sampler = make_sampler(settings.sampler, settings.seed)
    # Optuna cannot prune a study of several objectives.
    study.pruner = make_pruner("none" if settings.two_objectives else settings.pruner)
    enqueue_missing(study, settings)
    return study


def _wait_for_tickets(study: Any) -> None:
    """Wait for the process that has just created the study to enqueue its tickets; it may have died before that."""
    end = time.monotonic() + 5.0
    while not study.user_attrs.get("enqueued") and time.monotonic() < end:
        time.sleep(POLL)


def enqueue_missing(study: Any, settings: StudySettings) -> None:
    """Enqueue every ticket that no trial holds. A ticket enqueued twice, by two processes, is still run only once."""
    held = {trial.user_attrs.get(TICKET) for trial in _trials(study) if trial.state.name != "FAIL"}
    points = study.user_attrs.get("points", settings.points)
    for ticket in range(settings.total):
        if ticket not in held:
            study.enqueue_trial(points[ticket] if ticket < len(points) else {}, user_attrs={TICKET: ticket})
    study.set_user_attr("enqueued", True)


def run_worker(
    study: Any, settings: StudySettings, evaluate: Evaluate, on_trial: Callable[[Any, Any], None] = lambda *_: None
) -> None:
    """Run trials of the study in this process until none is left or a limit is reached.

    on_trial: called with the study and each trial that this worker has finished.
    """
    watch = _Watch(settings.heartbeat)
    while (trial := _next_trial(study, settings, watch)) is not None:
        with _heartbeat(trial, settings.heartbeat):
            finished = _run_trial(study, settings, trial, evaluate)
        on_trial(study, finished)


def _run_trial(study: Any, settings: StudySettings, trial: Any, evaluate: Evaluate) -> Any:
    """Return the finished trial, Optuna's FrozenTrial. Raises what `evaluate` raises besides bad values."""
    from optuna.trial import TrialState

    def finish(facts: Mapping[str, Any], values: Any = None, state: TrialState | None = None) -> Any:
        for key, value in facts.items():
            trial.set_user_attr(key, value)
        return study.tell(trial, values, state)

    def report(score: float, step: int) -> bool:
        if settings.two_objectives:
            return False
        trial.report(score, step)
        return trial.user_attrs[TICKET] != 0 and bool(trial.should_prune())  # the own values are compared in full

    try:
        point("tune.before_trial")
        result = evaluate(suggest(trial, settings), report)
        if not isfinite(result.score):
            raise ArithmeticError(f"the score is {result.score}")
    except Pruned as pruned:
        return finish(pruned.facts, state=TrialState.PRUNED)
    except ArithmeticError as error:
        # Told as pruned and not as failed, so that the sampler learns to avoid such values.
        return finish({"diverged": str(error)}, state=TrialState.PRUNED)
    except BaseException as error:
        finish({"problem": f"{type(error).__name__}: {error}"[:300]}, state=TrialState.FAIL)
        raise
    point("tune.before_score")
    facts = {**result.facts, "error": result.error, "seconds": result.seconds}
    return finish(facts, [result.score, result.seconds] if settings.two_objectives else result.score)


def suggest(trial: Any, settings: StudySettings) -> Values:
    """Values of all active dimensions; `trial` is Optuna's.

    The member's own value may lie outside the search space: it is one of the choices, and a fixed number of its trial.
    """
    values: Values = {}
    for key in in_order(settings.search):
        dimension = settings.search[key]
        if not is_active(dimension, values):
            continue
        if dimension.choices:
            own = settings.own_values[key]
            choices = dimension.choices if own in dimension.choices else (*dimension.choices, own)
            values[key] = trial.suggest_categorical(key, choices)
            continue
        low, high, step, log = dimension.low, dimension.high, dimension.step, dimension.log
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the member's own value, if it lies outside the interval
            if is_whole(key):
                values[key] = trial.suggest_int(key, int(low or 0), int(high or 0), step=int(step or 1), log=log)
            else:
                values[key] = trial.suggest_float(key, low, high, step=step, log=log)
    return values


def finished_trials(study: Any, settings: StudySettings) -> list[Any]:
    """Trials that are complete or pruned, one for each ticket, in the order of their numbers."""
    by_ticket: dict[int, Any] = {}
    for trial in _trials(study):
        ticket = trial.user_attrs.get(TICKET)
        if trial.state.name in ("COMPLETE", "PRUNED") and ticket is not None and ticket < settings.total:
            by_ticket.setdefault(ticket, trial)
    return sorted(by_ticket.values(), key=lambda trial: trial.number)


def score_of(trial: Any) -> float:
    """Score of a complete trial; -inf for all others and for scores that are not finite."""
    score = trial.values[0] if trial.state.name == "COMPLETE" else -inf
    return float(score) if isfinite(score) else -inf


def best_trial(trials: Sequence[Any]) -> Any | None:
    """The complete trial with the highest score, the earliest among equals; None if no trial is complete."""
    complete = [trial for trial in trials if score_of(trial) > -inf]
    return max(complete, key=score_of) if complete else None


def own_trial(trials: Sequence[Any]) -> Any | None:
    """The trial of the member's own values; None if it is not finished."""
    return next((trial for trial in trials if trial.user_attrs[TICKET] == 0), None)


def limit_reached(study: Any, settings: StudySettings) -> str:
    """Why the study ends before its last trial, or ""."""
    trials = finished_trials(study, settings)
    seconds = sum(trial.duration.total_seconds() for trial in trials)
    if settings.hours and seconds / settings.workers >= settings.hours * 3600:
        return f"tune.hours: {settings.hours:g} h are used"
    if settings.patience and trials_without_improvement(trials) >= settings.patience:
        return f"tune.patience: no improvement beyond noise in {settings.patience} trials"
    return ""


def trials_without_improvement(trials: Sequence[Any]) -> int:
    """Number of finished trials since the best score rose by more than the standard error of the best so far."""
    best, error, since = -inf, 0.0, 0
    for trial in trials:
        if score_of(trial) > best + error:
            best, error, since = score_of(trial), float(trial.user_attrs.get("error", 0.0)), 0
        else:
            since += 1
    return since


def _next_trial(study: Any, settings: StudySettings, watch: "_Watch") -> Any | None:
    """The next enqueued trial, now this worker's; None if all are finished, or a limit is reached.

    While other workers run the last trials this one waits, because it takes over if one of them dies.
    """
    while True:
        retry_dead_trials(study, settings, watch)
        if limit_reached(study, settings):
            return None
        trials = _trials(study)
        if not any(trial.state.name == "WAITING" for trial in trials):
            if any(trial.state.name == "RUNNING" for trial in trials):
                time.sleep(POLL)
            elif len(finished_trials(study, settings)) < settings.total:
                enqueue_missing(study, settings)  # a worker died between marking a trial as failed and enqueuing it
            else:
                return None
            continue
        trial = study.ask()
        trial.set_user_attr(WORKER, this_worker())
        if _is_ours(study, settings, trial):
            return trial


def _is_ours(study: Any, settings: StudySettings, trial: Any) -> bool:
    """Return False, and mark the trial as failed, if its ticket is missing, beyond the total or held by another trial.

    A trial without a ticket is created if another worker takes the last enqueued one between our look and our request.
    """
    from optuna.trial import TrialState

    ticket = trial.user_attrs.get(TICKET)
    holders = [other for other in _trials(study) if other.user_attrs.get(TICKET) == ticket]
    states = [other.state.name for other in holders if other.number != trial.number]
    is_free = not {"RUNNING", "COMPLETE", "PRUNED"} & set(states)
    if ticket is not None and ticket < settings.total and is_free:
        return True
    trial.set_user_attr(DISCARDED, True)
    study.tell(trial, state=TrialState.FAIL)
    return False


def retry_dead_trials(study: Any, settings: StudySettings, watch: "_Watch") -> None:
    """Mark the trials of dead workers as failed and enqueue their tickets again.

    After `retries` attempts with the same values the ticket gets new ones, because the values may be what kills the worker.
    The member's own values are kept: they are what all others are compared with.
    """
    from optuna.trial import TrialState

    for dead in [trial for trial in _trials(study) if trial.state.name == "RUNNING" and watch.is_dead(trial)]:
        try:
            study.tell(dead.number, state=TrialState.FAIL)
        except (ValueError, RuntimeError):
            continue  # another worker was faster
        if TICKET not in dead.user_attrs:
            continue
        attempt, ticket = dead.user_attrs.get(ATTEMPT, 0) + 1, dead.user_attrs[TICKET]
        again = attempt <= settings.retries or ticket == 0
        values = {**dead.system_attrs.get("fixed_params", {}), **dead.params} if again else {}
        study.enqueue_trial(values, user_attrs={TICKET: ticket, ATTEMPT: attempt, "retry_of": dead.number})


class _Watch:
    """Decides whether the worker of a running trial is dead.

    On this machine: its process has ended. On another one: its heartbeat, a counter, has not changed for three intervals
    by the clock of this machine, so the clocks of two machines are never compared.
    """

    def __init__(self, heartbeat: float) -> None:
        self._patience, self._beats = 3 * heartbeat, dict[int, tuple[Any, float]]()

    def is_dead(self, trial: Any) -> bool:
        worker = trial.user_attrs.get(WORKER, "")
        if worker == this_worker():
            return True  # this process runs one trial at a time, and none while it looks
        host, _, process = worker.rpartition("/")
        if host == socket.gethostname():
            return process != process_name(int(process.split(".")[0]))
        beat, now = trial.user_attrs.get(BEAT), time.monotonic()
        before, since = self._beats.setdefault(trial.number, (beat, now))
        if before != beat:
            self._beats[trial.number] = (beat, now)
            return False
        return now - since > self._patience


def this_worker() -> str:
    """HOST/PROCESS of this process, e.g. tpu-vm/4711.98234."""
    return f"{socket.gethostname()}/{process_name(os.getpid())}"


def process_name(pid: int) -> str:
    """PID.START of a running process, "" if there is none.  START: clock ticks after boot, because numbers are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return f"{pid}."
    state, *fields = text.rpartition(")")[2].split()
    return "" if state == "Z" else f"{pid}.{fields[18]}"


@contextmanager
def _heartbeat(trial: Any, interval: float) -> Iterator[None]:
    """Count up the trial's heartbeat in a thread every `interval` seconds."""
    ended = threading.Event()

    def beat() -> None:
        for number in count(1):
            if ended.wait(interval):
                return
            with suppress(Exception):  # a database that is away for a moment; the trial itself fails if it stays away
                trial.set_user_attr(BEAT, number)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _trials(study: Any) -> list[Any]:
    return list(study.get_trials(deepcopy=False))
