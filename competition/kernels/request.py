"""Select the fold models that a kernel trains and the local files that it needs.

Paths in the kernel are relative to the project's root.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from competition.budget.parameters import imported
from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.params_file import BUDGET_FILE
from competition.config.teachers import ancestors
from competition.workspace.dependencies import (
    blend_blocks,
    fold_manifest_path,
    fold_model,
    fold_views,
    weights_digest,
)
from competition.workspace.runs import Run, runs_of
from competition.workspace.workspace import Workspace

Runs = Mapping[str, Sequence[Run]]  # member -> its runs with the current parameters
ResultFolders = dict[str, tuple[Path, Sequence[Path]]]  # path in the kernel -> (local folder, its files)


def path_in_kernel(work: Path, path: Path) -> str:
    """Path in the kernel of a local path below work/<competition>."""
    return path.relative_to(work.parent.parent).as_posix()


def results_to_resume(work: Path, params: Params, runs: Runs, missing: Mapping[str, Sequence[int]]) -> ResultFolders:
    """Unfinished fold models with checkpoints, those that are only to be predicted by, and the teachers of students.

    runs: of every member.  missing: member -> folds that the kernel trains or predicts by.
    """
    models: list[tuple[Run, int]] = []
    for run, fold in ((run, fold) for name, folds in missing.items() for fold in folds for run in runs[name]):
        checkpoints = fold_manifest_path(run, fold).parent.glob("checkpoints/*.json")
        if fold_model(run, fold).is_current or any(checkpoints):
            models.append((run, fold))
    teachers = sorted({teacher for name in missing for teacher in ancestors(params, name)})
    models += _local_models(params, runs, missing, teachers)
    return _packed(work, [fold_manifest_path(run, fold).parent for run, fold in models])


def results_of_budget(workspace: Workspace) -> ResultFolders:
    """Fold models and predictions of the members that a budget made before, so that the next session makes others."""
    file = workspace.folder / BUDGET_FILE
    if not file.exists():
        return {}
    params = imported(file, workspace.params)
    runs = [run for name in params.members for run in runs_of(workspace.with_params(params), name)]
    folders = [fold_manifest_path(run, fold).parent for run in runs for fold in range(params.prepare.folds)]
    return _packed(workspace.folder, folders)


def _packed(work: Path, folders: Iterable[Path]) -> ResultFolders:
    """Those of the folders that exist, with all their files except lock files."""
    packed: ResultFolders = {}
    for folder in folders:
        if folder.is_dir():
            files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]
            packed[path_in_kernel(work, folder)] = folder, files
    return packed


def results_to_blend(
    work: Path, params: Params, runs: Runs, missing: Mapping[str, Sequence[int]], excluded: ResultFolders
) -> ResultFolders:
    """Results that a blend in the kernel needs: predictions of the local fold models, or else the models themselves.

    Includes the measured noise between seeds, which the choice of the blend uses.
    """
    result_folders = _packed(work, [work / "noise"])
    for run, fold in _local_models(params, runs, missing, params.members):
        manifest, views = fold_manifest_path(run, fold), fold_views(run, params, fold)
        for name, (folder, files) in _packed(work, [manifest.parent]).items():
            # Predictions are found by the digest of the weights, which is in the model's manifest.
            predictions = [manifest, *(file for file in files if views.manifest.parent in file.parents)]
            if name not in excluded:
                result_folders[name] = folder, predictions if views.is_current else files
    return result_folders


def submission_request_digest(runs: Runs, params: Params) -> str:
    """Digest of the inputs of a submission (models and ensemble parameters); a new digest needs a new submission."""
    if params.external:
        raise UserError(
            f"members.{next(iter(params.external))}.predictions are local files, which a submission from a notebook "
            "cannot use; remove the member, or set kaggle.submit to file"
        )
    folds, members = range(params.prepare.folds), params.members
    models = {name: [[weights_digest(run, fold) for fold in folds] for run in runs[name]] for name in members}
    if stored := [name for name in params.blend.members if "@" in name]:
        raise UserError(
            f"blend.members: {stored[0]} is a stored run, which a submission from a notebook cannot use; name members, or "
            "set kaggle.submit to file"
        )
    names, metric = params.blend.members, params.competition.metric
    choices = [asdict(params.predict), *blend_blocks(params).values(), names, metric]
    return digest_of({"models": models, "choices": choices})


def _local_models(
    params: Params, runs: Runs, missing: Mapping[str, Sequence[int]], names: Iterable[str]
) -> list[tuple[Run, int]]:
    """Run and fold of the fold models of these members that the kernel does not train."""
    folds = range(params.prepare.folds)
    models = [(name, fold) for name in names for fold in folds if fold not in missing.get(name, ())]
    return [(run, fold) for name, fold in models for run in runs[name]]
