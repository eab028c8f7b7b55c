"""Copy fold models from a run whose training was the same, and which only differs in the folds whose rows chose its hyperparameters:
a study that keeps a member's own values trains nothing again, and its rows are still left out of honest scores.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.files.locks import InUse
from competition.files.manifest import copy_file, read_manifest
from competition.workspace.dependencies import FoldModel, fold_model, fold_names
from competition.workspace.runs import Run, stored_runs, write_run_file
from pipelines.execution.selection import selected_folds
from pipelines.terminal import hosts
from pipelines.terminal.job import Computed, Job


def copy_equal_models(job: Job, run: Run) -> None:
    """Copy the selected fold models that the run lacks from runs with the same training."""
    if job.options.force or hosts.are_joined():
        return
    for other in equal_runs(job.work, run):
        models = [(fold_model(other, fold), fold_model(run, fold)) for fold in selected_folds(job)]
        copied = [target.fold for source, target in models if source.is_current and not target.is_current]
        if copied:
            write_run_file(run)
            for source, target in models:
                if target.fold in copied:
                    with suppress(InUse):  # another process computes it now
                        copy = partial(copy_files, source)
                        job.cached(f"train {target.name}", target.manifest, target.depends, copy)
            names = fold_names(copied)
            job.echo(f"train {run.title}: {names} copied from {other.label}, which was trained in the same way")


def equal_runs(work: Path, run: Run) -> list[Run]:
    """The stored runs of the member that differ from `run` in nothing but the folds that chose their hyperparameters."""

    def training(of_run: Run) -> str:
        member: dict[str, Any] = dict(of_run.depends["member"])
        member.pop("tuned_folds", None)
        return digest_of({**of_run.depends, "member": member, "tuned_folds": []})

    try:
        stored = stored_runs(work, run.name)
    except UserError:  # one has parameters of another version; `make runs` names it, and training does not need it
        return []
    return [other for other in stored if other.digest != run.digest and training(other) == training(run)]


def copy_files(source: FoldModel, folder: Path) -> Computed:
    """Copy the files of a complete fold model."""
    manifest = read_manifest(source.manifest)
    assert manifest is not None, f"{source.manifest} was removed while it was copied"
    for name in manifest.files:
        copy_file(source.manifest.with_name(name), folder / name)
    return [folder / name for name in manifest.files], manifest.result
