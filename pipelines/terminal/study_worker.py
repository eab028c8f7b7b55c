"""One worker of a member's study: what `make tune` runs here, in its WORKERS processes, and on other machines."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.ensemble.metrics import metric_named
from competition.files.manifest import copy_file
from competition.preflight.planning import duration
from competition.tuning.choice import format_values
from competition.tuning.storage import open_storage
from competition.tuning.study import StudySettings, best_trial, finished_trials, open_study, run_worker, score_of
from competition.workspace.studies import continued_journal, tuning_dependencies, tuning_result_path
from competition.workspace.study_settings import study_settings
from pipelines.terminal.runner import Job
from pipelines.terminal.tuning_trials import TrialRunner


def work_on_study(
    job: Job, name: str, runner: TrialRunner | None = None, show: Callable[[str], None] | None = None
) -> None:
    """Run one worker of a member's study in this process, until no trial is left or a limit is reached.

    Any number of processes may call this at once, here or on other machines that have the same prepared data and reach
    tune.storage (without it: the same work folder). Whoever calls it first creates the study.
    show: gets a line for each finished trial; None: it is printed.
    """
    settings = study_settings(job.workspace, name, max(job.options.workers, 1))
    study = open_study(storage_of(job, name), settings)
    runner, sign = runner or TrialRunner(job, name), metric_named(job.prepared.competition.metric).sign
    show = show or job.echo

    def on_trial(study: Any, trial: Any) -> None:
        show(f"tune {name}: {trial_line(study, settings, trial, sign)}")

    run_worker(study, settings, runner.evaluate, on_trial)


def storage_of(job: Job, name: str) -> Any:
    storage = job.params.tune.storage
    return open_storage(storage, Path() if storage else journal_of(job, name))


def journal_of(job: Job, name: str) -> Path:
    """The journal file of a member's study on this machine; a copy of that of fewer trials if the study continues it."""
    depends = tuning_dependencies(job.workspace, name)
    result = tuning_result_path(job.work, name, depends)
    journal = result.with_name("study.log")
    if not journal.exists() and (earlier := continued_journal(result, name, depends)):
        copy_file(earlier, journal)  # more trials continue the same study
    return journal


def with_storage(job: Job, storage: str) -> Job:
    """The job with another tune.storage; a study does not depend on where it is stored."""
    params = replace(job.params, tune=replace(job.params.tune, storage=storage))
    return replace(job, workspace=job.workspace.with_params(params))


def trial_line(study: Any, settings: StudySettings, trial: Any, sign: int) -> str:
    """trial 4 complete .8123 (learning_rate .0012); best .8231 (trial 2); 5 of 20 done, about 3 min left"""
    trials = finished_trials(study, settings)
    best, facts = best_trial(trials), trial.user_attrs
    if "diverged" in facts:
        state = "diverged"
    elif trial.state.name == "COMPLETE":
        state = f"complete {sign * trial.values[0]:.4f}"
    else:
        last = trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else float("nan")
        state = f"{trial.state.name.lower()} at {sign * last:.4f} after {facts.get('share', 0):.0%}"
    # Compiling is done once for many trials, so it is no part of the time that is left.
    seconds = sum(t.duration.total_seconds() - t.user_attrs.get("compiled", 0.0) for t in trials)
    left = (settings.total - len(trials)) * seconds / max(len(trials), 1)
    best_text = f"best {sign * score_of(best):.4f} (trial {best.number})" if best is not None else "none complete yet"
    remaining = f", about {duration(left / settings.workers)} left" if len(trials) < settings.total else ""
    return (
        f"trial {trial.number} {state} ({format_values(trial.params)}); {best_text}; "
        f"{len(trials)} of {settings.total} done{remaining}"
    )
