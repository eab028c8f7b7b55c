"""Copy fold models and predictions from a run whose training was the same, and which only differs in the folds whose rows chose its
hyperparameters: a study that keeps a member's own values trains nothing again, and its rows are still left out of honest scores.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.files.locks import InUse
from competition.files.manifest import Stored, copy_file, read_manifest
from competition.workspace.dependencies import fold_model, fold_names, fold_views
from competition.workspace.runs import Run, stored_runs
from pipelines.execution.selection import selected_folds
from pipelines.execution.training import begin_run
from pipelines.terminal import hosts
from pipelines.terminal.runner import Computed, Job


def copy_equal_models(job: Job, run: Run) -> None:
    """Copy the selected fold models that the run lacks, and their predictions, from runs with the same training."""
    if job.options.force or hosts.are_joined():
        return
    folds = selected_folds(job)
    for other in equal_runs(job.work, run):
        models = {fold: fold_model(run, fold) for fold in folds}
        lacking = [fold for fold in folds if not models[fold].is_current and fold_model(other, fold).is_current]
        if lacking:
            begin_run(job, run)
            for fold in lacking:
                copy(job, f"train {models[fold].name}", fold_model(other, fold), models[fold])
            names = fold_names(lacking)
            job.echo(f"train {run.title}: {names} copied from {other.label}, which was trained in the same way")
        for fold, model in models.items():
            source, target = fold_views(other, job.params, fold), fold_views(run, job.params, fold)
            if source.is_current and model.is_current and not target.is_current:
                copy(job, f"predict {model.name}", source, target)


def equal_runs(work: Path, run: Run) -> list[Run]:
    """The stored runs of the member that differ from `run` in nothing but the folds that chose their hyperparameters.

    They get the views of `run`, which a stored run does not have: predictions under others are not copied.
    """

    def training(of_run: Run) -> str:
        member: dict[str, Any] = dict(of_run.depends["member"])
        member.pop("tuned_folds", None)
        return digest_of({**of_run.depends, "member": member, "tuned_folds": []})

    try:
        stored = stored_runs(work, run.name)
    except UserError:  # one has parameters of another version; `make runs` names it, and training does not need it
        return []
    equal = [other for other in stored if other.digest != run.digest and training(other) == training(run)]
    return [replace(other, member=replace(other.member, views=run.member.views)) for other in equal]


def copy(job: Job, title: str, source: Stored, target: Stored) -> None:
    """Copy the files of a complete result, unless another process computes it now."""

    def copy_files() -> Computed:
        manifest = read_manifest(source.manifest)
        assert manifest is not None, f"{source.manifest} was removed while it was copied"
        for name in manifest.files:
            copy_file(source.manifest.parent / name, target.manifest.parent / name)
        return [target.manifest.parent / name for name in manifest.files], manifest.result

    with suppress(InUse):
        job.cached(title, target.manifest, target.depends, copy_files)
