"""The process that computes one task on a machine of a cluster: trains or predicts by one fold model, or works on a study.

Started by competition.cluster.node, with the task as one line of JSON on stdin. The driver reads what it prints.
"""

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.cluster.node import MACHINE_EXIT
from competition.cluster.project import PARAMS
from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.ensemble.settings import validate_params
from competition.files.manifest import changed_keys, write_manifest
from competition.workspace.dependencies import fold_model, fold_views
from competition.workspace.runs import runs_of, stored_runs
from competition.workspace.studies import tuning_dependencies
from competition.workspace.study_worker import study_of, study_settings, trial_line
from competition.workspace.workspace import Workspace
from pipelines.execution.open_trainer import open_trial_runner
from pipelines.execution.prediction import predict_folds
from pipelines.execution.training import train_models
from pipelines.terminal.failures import describe
from pipelines.terminal.job import Job
from pipelines.terminal.options import Options

# Errors of a machine, which another one may not have. Anything else in Python would fail there too.
MACHINE_ERRORS = {"OSError", "MemoryError", "UnavailableError", "ResourceExhaustedError"}
MACHINE_ERRORS |= {"XlaRuntimeError", "JaxRuntimeError"}


def main() -> None:
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        path, folder = Path(task["project"]) / PARAMS, Path(task["work"])
        params = validate_params(load_params(path))
        params = replace(params, cache=replace(params.cache, folder=task["cache"]))
        workers = task["values"].get("workers", 1)
        options = Options(path, work=folder, submissions=folder / "submissions", workers=workers)
        work(Job(Workspace(folder / params.competition.name, params), options, options.submissions), task)
    except Exception as error:
        print(f"goldfold: {error if isinstance(error, UserError) else describe(error)}", flush=True)
        kinds = set[str]()
        cause: BaseException | None = error
        while cause is not None:
            kinds |= {kind.__name__ for kind in type(cause).__mro__}
            cause = cause.__cause__
        sys.exit(MACHINE_EXIT if MACHINE_ERRORS & kinds else 1)


def end_with_parent() -> None:
    """End this process at the end of its stdin, which is that of its parent, too: it would hold the lock of its fold model."""
    sys.stdin.read()
    os._exit(1)


def work(job: Job, task: Mapping[str, Any]) -> None:
    """Compute the result of a task, unless it is there already."""
    values = task["values"]
    if task["verb"] == "tune":
        work_on_the_study(job, task["member"], values)
        write_manifest(job.options.work / task["result_folder"] / "manifest.json", {}, [], {}, {})
        return
    own, fold = runs_of(job.workspace, task["member"]), values["fold"]
    run = next((run for run in [*own, *stored_runs(job.work, task["member"])] if run.digest == values["run"]), None)
    if run is None:
        changes = changed_keys(values["depends"], own[0].depends)
        raise UserError(f"this machine would train another run ({'; '.join(changes[:3])}): its files differ")
    if task["verb"] == "train":
        train_models(job, run, [fold_model(run, fold)])
    else:
        predict_folds(job, run, {fold: fold_views(run, job.params, fold)})


def work_on_the_study(job: Job, name: str, values: Mapping[str, Any]) -> None:
    """Run trials of the study until none is left. Raises UserError if this machine would work on another study."""
    from competition.tuning.study import run_worker

    params = replace(job.params, tune=replace(job.params.tune, storage=values["storage"]))  # it is in no file here
    job = replace(job, workspace=job.workspace.with_params(params))
    settings = study_settings(job.workspace, name, job.options.workers)
    if settings.name != values["study"]:
        changes = changed_keys(values["depends"], tuning_dependencies(job.workspace, name))
        differing = "; ".join(changes[:3])
        raise UserError(f"this machine would work on another study ({differing}): its packages or files differ")
    study = study_of(job.workspace, name, settings)
    sign = job.prepared.metric.sign
    run_worker(
        study,
        settings,
        open_trial_runner(job, name).evaluate,
        lambda study, trial: print(f"tune {name}: {trial_line(study, trial, settings, sign)}", flush=True),
    )


if __name__ == "__main__":
    main()
