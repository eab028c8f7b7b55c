"""Search hyperparameters with Optuna; the best values are written to a file that `train` uses and shows.

Trials are cross-validated within tune.folds, so no label of another fold takes part in the
choice, and the rows of the other folds give an honest score. Scoring trials on one fold while training them on all others
is not enough: a value that by chance predicts fold 0 from fold 1 also predicts fold 1 from fold 0.

The first process that tunes a member leads its study: it enqueues the trials, compares the best one with the member's own
values, and writes the result. Other processes with the same parameters and storage join as workers.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from competition.config.errors import UserError, counted
from competition.config.search_space import can_be_tuned, is_tuned
from competition.ensemble.metrics import Metric
from competition.files.manifest import Manifest, Stored, write_json
from competition.report.terminal import with_error
from competition.tuning.choice import (
    best_trial,
    finished_trials,
    format_values,
    limit_reached,
    origin_of,
    score_of,
)
from competition.tuning.settings import StudySettings
from competition.workspace.dependencies import fold_names
from competition.workspace.scores import trivial_text
from competition.workspace.studies import tuning_dependencies, tuning_result_path
from competition.workspace.study_worker import study_of, study_settings, trial_line
from competition.workspace.tracking import Outcome, Subject
from pipelines.execution.cluster import require_reachable_storage, run_workers
from pipelines.execution.open_trainer import open_trial_runner, start_device
from pipelines.execution.selection import selected_members
from pipelines.terminal import hosts
from pipelines.terminal.job import Computed, Job, track

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from competition.tuning.trials import TrialRunner


def run(job: Job) -> None:
    """data/ -> tune/<member>/<digest>/best.json, beside it the study"""
    tune = job.params.tune
    if tune.trials == 0:
        if not job.options.as_part:
            job.echo("tune: not asked for (tune.trials is 0)")
        return
    if not tune.folds:
        folds = f"with {job.params.prepare.folds} folds (prepare.folds) no row would remain for the honest scores"
        job.echo(f"tune: not done, because {folds}; state tune.folds to tune nevertheless")
        return
    _ = job.prepared  # an error before anything is started
    for name in members_to_tune(job):
        if job.options.join:
            join_study(job, name)
        else:
            tune_member(job, name)


def members_to_tune(job: Job) -> list[str]:
    """Those of tune.members among the selected ones; also MEMBER= of `make tune`, which other verbs run before their work."""
    members, tune, is_named = job.params.members, job.params.tune, not job.options.as_part
    names = [name for name in selected_members(job) if can_be_tuned(members[name], tune.search)]
    if not (job.options.member and is_named):
        names = [name for name in names if is_tuned(members[name], name, tune)]
    if is_named and not names:
        job.echo(
            f"tune: nothing to do: tuned are members without a teacher and tuned_folds in which {', '.join(tune.search)} (tune.search) "
            f"change something and that tune.members names (now {', '.join(tune.members)}), or MEMBER="
        )
    return names


def tune_member(job: Job, name: str) -> Manifest:
    """Lead the study of one member, or join it if another process on this machine leads it."""
    depends = tuning_dependencies(job.workspace, name)
    result = tuning_result_path(job.work, name, depends)
    if hosts.are_expected() and not Stored(result.with_name("manifest.json"), depends).is_current:
        start_device(job)
        if job.hosts.is_shared:  # a trial of one host would wait for the others for ever
            remedy = "run `make tune` on one machine first, or set tune.trials=0"
            raise UserError(f"several hosts that share a folder cannot lead the study of {name}; {remedy}")
    leader = FileLock(result.with_name("leader.lock"))  # that of a dead process is free
    try:
        leader.acquire(timeout=0)
        leader.release()
    except Timeout:
        job.echo(f"tune {name}: another process leads this study; this one joins it")
        join_study(job, name)
    with leader:
        compute = partial(lead_study, job, name, depends)
        return job.cached(f"tune {name}", result.with_name("manifest.json"), depends, compute)


def join_study(job: Job, name: str) -> None:
    """Run trials of a member's study, here and now, beside other processes. Whoever comes first creates the study."""
    settings = study_settings(job.workspace, name, max(job.options.workers, 1))
    work(job, name, study_of(job.workspace, name, settings), settings, open_trial_runner(job, name))


def work(job: Job, name: str, study: "Study", settings: StudySettings, runner: "TrialRunner") -> None:
    """Run trials in this process, until all of the study are finished or a limit is reached; any number of processes may."""
    from competition.tuning.study import run_worker

    sign = job.prepared.metric.sign

    def on_trial(study: "Study", trial: "FrozenTrial") -> None:
        job.echo(f"tune {name}: {trial_line(study, trial, settings, sign)}")
        subject = Subject("trial", settings.name.replace("/", "-"), f"trial-{trial.number}", dict(trial.params))
        with track(job, subject) as tracking:
            for step, score in trial.intermediate_values.items():
                tracking.log("step", step, {"score": sign * score})
            numbers = {"score": sign * trial.values[0]} if trial.values else {}
            tracking.end(Outcome(numbers, {"member": name, "state": trial.state.name.lower()}))

    run_worker(study, settings, runner.evaluate, on_trial)


def lead_study(job: Job, name: str, depends: dict[str, Any], folder: Path) -> Computed:
    """Run the missing trials of one member's study, here, in other processes or on a cluster, and write best.json to `folder`."""
    workers = job.options.workers
    settings = study_settings(job.workspace, name, workers)
    if job.options.cluster:
        require_reachable_storage(job.params.tune.storage)
    study = study_of(job.workspace, name, settings)
    trials = study.get_trials(deepcopy=False)
    done = len(finished_trials(trials, settings))
    searched, earlier = ", ".join(settings.tune.search), f", {done} of them finished earlier" if done else ""
    where = f"{counted(max(workers, 1), 'process', 'processes')}{' of the cluster' if job.options.cluster else ''}"
    job.echo(f"tune {name}: {counted(settings.total, 'trial')} of {searched}{earlier}, in {where}")
    runner = open_trial_runner(job, name)
    if not job.options.cluster:
        run_worker_processes(job, name)
    elif done < settings.total and not limit_reached(trials, settings):
        run_workers(job, name, settings, depends)
    work(job, name, study, settings, runner)  # with workers: what they left because they were stopped
    trials = finished_trials(study.get_trials(deepcopy=False), settings)
    result = result_of(job, name, settings, study, runner)
    best = folder / "best.json"
    write_json(best, result)
    lines = result_lines(result, settings, trials, job.prepared.metric)
    job.echo(*(f"tune {name}: {line}" for line in lines))
    return [best], result


def run_worker_processes(job: Job, name: str) -> None:
    """Run WORKERS processes that join the study, until they end; none for one worker, which is this process itself."""
    options = job.options
    command = [sys.executable, "-m", "pipelines", "tune", "--join", "--member", name, "--workers", str(options.workers)]
    for flag, value in (("params", options.params), ("work", options.work), ("submissions", options.submissions)):
        command += [f"--{flag}", str(value)]
    command += ["--debug"] if options.debug else []
    # Other users of the machine see a command line, but not the environment; SET may have the password of tune.storage.
    environment = {**os.environ, "GOLDFOLD_SET": options.sets}
    number = options.workers if options.workers > 1 else 0
    processes = [subprocess.Popen(command, env=environment) for _ in range(number)]
    try:
        for process in processes:
            if code := process.wait():
                job.echo(f"tune {name}: worker {process.pid} ended with code {code}; another takes its trial")
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def result_of(job: Job, name: str, settings: StudySettings, study: "Study", runner: "TrialRunner") -> dict[str, Any]:
    """Content of best.json."""
    prepared = job.prepared
    all_trials, tune = study.get_trials(deepcopy=False), job.params.tune
    trials = finished_trials(all_trials, settings)
    best, own = best_trial(trials), next((trial for trial in trials if origin_of(trial) == 0), None)
    comparison, chosen = None, best if best is not None and origin_of(best) != 0 else None
    if chosen is not None and own is not None and score_of(own) != -float("inf"):
        job.echo(f"tune {name}: comparing trial {chosen.number} with the member's own values on what chose neither")
        comparison = runner.confirm(dict(chosen.params), tune.confirm_seeds)
        chosen = chosen if comparison.is_gain else None
    sign = prepared.metric.sign
    shares = [trial.user_attrs.get("share", 1.0) for trial in trials]
    return {
        "values": dict(settings.own_values if chosen is None else chosen.params),
        "comparison": comparison,
        "trial": 0 if chosen is None else chosen.number,
        "own_values": dict(settings.own_values),
        "tried": {str(trial.number): dict(trial.params) for trial in trials},  # each can be adopted
        "score": sign * score_of(best) if best is not None else None,
        "trials": len(trials),
        "pruned": sum(trial.state.name == "PRUNED" for trial in trials),
        "mean_share": round(fmean(shares or [1.0]), 4),  # mean cost of a trial as a share of an unpruned one
        "limit": limit_reached(all_trials, settings) if len(trials) < settings.total else "",
        "folds": list(study.user_attrs["folds"]),
        "ranking_folds": list(runner.ranking_folds),
        "trivial": trivial_text(prepared, runner.ranking_folds, None if best is None else sign * score_of(best)),
        "data": prepared.digest,
        "study": settings.name,
        "metric": prepared.competition.metric,
        "finished": datetime.now(UTC).isoformat(),
    }


def result_lines(
    result: Mapping[str, Any], settings: StudySettings, trials: Sequence["FrozenTrial"], metric: Metric
) -> list[str]:
    """The best score, the cost of a trial, and what `make train` will use.  trials: the finished ones."""
    best = f"best of {counted(result['trials'], 'trial')}"
    if result["score"] is not None:
        within = f"trained within {fold_names(result['folds'])} alone, where {result['trivial']}"
        best += f": {metric.name} {result['score']:.4f} on {fold_names(result['ranking_folds'])}, {within}"
    if result["pruned"]:
        best += f", {result['pruned']} pruned, a trial cost {result['mean_share']:.0%} of a full one on average"
    ended = f"ended after {result['trials']} of {settings.total} trials by {result['limit']}"
    return [best, *([ended] if result["limit"] else []), conclusion(result, trials, metric.sign)]


def conclusion(result: Mapping[str, Any], trials: Sequence["FrozenTrial"], sign: int) -> str:
    """Which values `make train` uses and why, in one sentence.

    result: content of best.json.  trials: the finished ones.  sign: -1 if less is better in the metric.
    """
    best = best_trial(trials)
    comparison, uses = result["comparison"], f"so `make train` uses {format_values(result['values'])}"
    if best is None:
        return f"all trials diverged, {uses}, the member's own values; lower train.learning_rate or the intervals of tune.search"
    if comparison is not None:
        gain = f"over the member's own values is {comparison.difference:+.4f} ± {comparison.error:.4f}"
        rows = f"on {counted(comparison.rows, 'row')} that chose neither (training seeds: {comparison.seeds})"
        kept = "" if comparison.is_gain else ", which is not more than its standard error"
        return f"the gain of trial {best.number} {gain} {rows}{kept}, {uses}"
    if origin_of(best) != 0:
        return f"the trial of the member's own values is not complete, {uses}, those of trial {best.number}"
    score = with_error(sign * score_of(best), float(best.user_attrs.get("error", 0.0)), result["metric"])
    return f"the member's own values have the best score, {score}, {uses}"
