"""List the runs that no submission and no parameter file uses, with their size; remove them with FORCE=1."""

import shutil
from pathlib import Path

from rich import filesize

from competition.budget.portfolio import PORTFOLIO
from competition.config.errors import UserError, counted
from competition.config.params_file import BUDGET_FILE, load_params
from competition.ensemble.settings import validate_params
from competition.prepare.prepared import load_prepared
from competition.workspace.runs import runs_in_use, size_of, stored_runs, submissions_by_run, with_teachers
from competition.workspace.workspace import Workspace
from pipelines.terminal.job import Job
from pipelines.terminal.options import ROOT
from pipelines.terminal.output import display_path


def run(job: Job) -> None:
    """members/*/*/, recipes/, submissions/ledger.jsonl -> a list on the screen; with FORCE=1 the listed folders are removed"""
    unused = unused_folders(job)
    total, folders = sum(unused.values()), counted(len(unused), "folder")
    job.echo(*(f"prune: {display_path(folder)}: {filesize.decimal(size)}" for folder, size in unused.items()))
    if not unused:
        job.echo("prune: every run is used by the parameters, a recipe or a submission of the ledger")
    elif job.options.force:
        for folder in unused:
            shutil.rmtree(folder)
        job.echo(f"prune: removed {folders}, {filesize.decimal(total)}")
    else:
        job.echo(
            f"prune: {folders}, {filesize.decimal(total)}, used by no submission of the ledger, no recipe and not by the current "
            "parameters; `make prune FORCE=1` removes what is listed"
        )


def unused_folders(job: Job) -> dict[Path, int]:
    """Folder -> bytes of the runs that nothing uses."""
    used = runs_in_use(job.workspace)
    recipes = [path for path in sorted((ROOT / "recipes").glob("*.yaml")) if path != PORTFOLIO]
    of_budget = [path for path in [job.work / BUDGET_FILE] if path.is_file()]
    for path in [job.options.params, ROOT / "params.yaml", *recipes, *of_budget]:  # the current one without SET
        try:
            params = validate_params(load_params(path))
        except UserError as error:
            raise UserError(f"{error}; nothing was removed, because a run that this file uses might be") from None
        if params.competition.name == job.params.competition.name:
            of_file = load_prepared(job.path("data"), params.competition.metric, params.competition.predicts)
            used |= runs_in_use(Workspace(job.work, params, loaded=of_file))
    runs = stored_runs(job.work)
    submitted = submissions_by_run(job.workspace, job.submissions, runs)
    in_use = {run.label for run in with_teachers([run for run in runs if submitted[run.label]])} | used.keys()
    unused = sorted(run.folder for run in runs if run.label not in in_use)
    return {folder: size_of(folder) for folder in unused}
