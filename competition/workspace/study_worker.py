"""One worker of a member's study, and where the study is stored."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from competition.files.manifest import copy_file
from competition.preflight.planning import duration
from competition.tuning.choice import best_trial, finished_trials, format_values, score_of
from competition.tuning.settings import StudySettings
from competition.tuning.storage import open_storage
from competition.workspace.studies import continued_journal, tuning_dependencies, tuning_result_path
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from competition.tuning.trials import TrialRunner


def work_on_study(
    study: "Study",
    settings: StudySettings,
    runner: "TrialRunner",
    sign: int,
    show: Callable[[str], None],
    track: Callable[["FrozenTrial"], None] = lambda trial: None,
) -> None:
    """Run trials in this process, until all of the study are finished or a limit is reached.

    Any number of processes may call this at once, here or on other machines that have the same prepared data and reach the
    storage of the study.
    sign: -1 if less is better in the metric.
    show, track: get a line, and the trial, for each trial that this worker has finished.
    """
    from competition.tuning.study import run_worker

    def on_trial(study: "Study", trial: "FrozenTrial") -> None:
        show(trial_line(finished_trials(study.get_trials(deepcopy=False), settings), trial, settings, sign))
        track(trial)

    run_worker(study, settings, runner.evaluate, on_trial)


def storage_of(workspace: Workspace, name: str) -> "BaseStorage":
    """The storage of a member's study: tune.storage, or its journal on this machine."""
    storage = workspace.params.tune.storage
    return open_storage(storage, Path() if storage else journal_of(workspace, name))


def journal_of(workspace: Workspace, name: str) -> Path:
    """The journal file of a member's study on this machine; a copy of that of fewer trials if the study continues it."""
    depends = tuning_dependencies(workspace, name)
    result = tuning_result_path(workspace.folder, name, depends)
    journal = result.with_name("study.log")
    if not journal.exists() and (earlier := continued_journal(result, name, depends)):
        copy_file(earlier, journal)  # more trials continue the same study
    return journal


def trial_line(trials: list["FrozenTrial"], trial: "FrozenTrial", settings: StudySettings, sign: int) -> str:
    """trial 4 complete .8123 (learning_rate .0012); best .8231 (trial 2); 5 of 20 done, about 3 min left

    trials: the finished ones.
    """
    best, facts = best_trial(trials), trial.user_attrs
    if "diverged" in facts:
        state = "diverged"
    elif trial.state.name == "COMPLETE":
        state = f"complete {sign * trial.values[0]:.4f}"
    else:
        last = trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else float("nan")
        state = f"{trial.state.name.lower()} at {sign * last:.4f} after {facts.get('share', 0):.0%}"
    # Compiling is done once for many trials, so it is no part of the time that is left.
    seconds = sum(t.duration.total_seconds() - t.user_attrs.get("compiled", 0.0) for t in trials if t.duration)
    seconds_left = (settings.total - len(trials)) * seconds / max(len(trials), 1)
    best_text = f"best {sign * score_of(best):.4f} (trial {best.number})" if best is not None else "none complete yet"
    remaining = f", about {duration(seconds_left / settings.workers)} left" if len(trials) < settings.total else ""
    return (
        f"trial {trial.number} {state} ({format_values(trial.params)}); {best_text}; "
        f"{len(trials)} of {settings.total} done{remaining}"
    )
