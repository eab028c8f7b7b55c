"""Copy fold models and predictions from a run whose training was the same, and which only differs in the folds whose rows chose its
hyperparameters: a study that keeps a member's own values trains nothing again, and its rows are still left out of honest scores.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.files.manifest import copy_file, is_current, read_manifest
from competition.workspace.dependencies import (
    fold_manifest_path,
    fold_model_dependencies,
    fold_names,
    fold_views_path,
    is_trained,
    views_dependencies,
)
from competition.workspace.runs import Run, stored_runs
from pipelines.execution.selection import selected_folds
from pipelines.terminal import hosts
from pipelines.terminal.runner import Computed, InUse, Job


def copy_equal_models(job: Job, run: Run) -> None:
    """Copy the selected fold models that the run lacks, and their predictions, from runs with the same training."""
    if job.options.force or hosts.are_joined():
        return
    folds = selected_folds(job)
    for other in equal_runs(job.work, run):
        lacking = [fold for fold in folds if not is_trained(run, fold) and is_trained(other, fold)]
        if lacking:
            job.begin_run(run)
        for fold in lacking:
            source, target = fold_manifest_path(other, fold), fold_manifest_path(run, fold)
            with suppress(InUse):  # another process trains it now
                job.cached(
                    f"train {run.title} fold {fold}",
                    target,
                    fold_model_dependencies(run, fold),
                    partial(copy, source, target),
                )
        if lacking:
            job.echo(
                f"train {run.title}: {fold_names(lacking)} copied from {other.label}, which was trained in the same way"
            )
        for fold in folds:
            source, target = fold_views_path(other, job.params, fold), fold_views_path(run, job.params, fold)
            depends = views_dependencies(run, job.params, fold)
            has_source = is_current(source, views_dependencies(other, job.params, fold))
            if has_source and is_trained(run, fold) and not is_current(target, depends):
                with suppress(InUse):
                    job.cached(f"predict {run.title} fold {fold}", target, depends, partial(copy, source, target))


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


def copy(source: Path, target: Path) -> Computed:
    """Copy the files of a complete result.  source, target: paths of the manifests."""
    manifest = read_manifest(source)
    assert manifest is not None, f"{source} was removed while it was copied"
    for name in manifest.files:
        copy_file(source.parent / name, target.parent / name)
    return [target.parent / name for name in manifest.files], manifest.result
