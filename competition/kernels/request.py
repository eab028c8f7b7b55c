"""Select the fold models that a kernel trains and the local files that it needs.

A unit is one result folder. Paths in the kernel are relative to the project's root.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    fold_views_path,
    is_nested,
    model_path,
    teacher_models,
    views_dependencies,
)
from competition.artifacts.manifest import digest_of, is_current, read_manifest
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds, Member, Params
from competition.config.params_file import ancestors
from competition.data.prepared import Prepared
from competition.kernels import packing

AnyFold = TypeVar("AnyFold", bound=ExcludedFolds)
Units = dict[str, tuple[Path, Sequence[Path]]]  # path in the kernel -> (local folder, its files)


def path_in_kernel(work: Path, path: Path) -> str:
    """Path in the kernel of a local path below work/<competition>."""
    return path.relative_to(work.parent.parent).as_posix()


def stale_folds(
    work: Path, params: Params, prepared: Prepared, name: str, member: Member, folds: Iterable[AnyFold]
) -> list[AnyFold]:
    """Folds whose fold model is missing or was trained from other inputs or parameters."""

    def current(fold: ExcludedFolds) -> bool:
        return is_current(model_path(work, name, fold), fold_model_dependencies(work, prepared, params, member, fold))

    return [fold for fold in folds if not current(fold)]


def units_to_resume(
    work: Path, params: Params, members: Mapping[str, Member], missing: Mapping[str, Sequence[int]]
) -> Units:
    """Unfinished fold models with checkpoints, and the teachers of students that the kernel trains.

    missing: member -> folds that the kernel trains.
    """
    parts = [fold_model_path(work, name, fold).parent for name, folds in missing.items() for fold in folds]
    units = [folder for folder in parts if any(folder.glob("checkpoints/*.json"))]
    for teacher in sorted({teacher for name in missing for teacher in ancestors(params, name)}):
        folds = sorted(set(range(params.prepare.folds)) - set(missing.get(teacher, ())))
        units += [fold_model_path(work, teacher, fold).parent for fold in folds]
    units += [model_path(work, *each).parent for each in nested_teachers(params, missing)]
    return _packed(work, units)


def nested_teachers(params: Params, missing: Mapping[str, Sequence[int]]) -> list[tuple[str, ExcludedFolds]]:
    """(member, two folds) of the teacher models that nested students among the missing fold models learn from."""
    teachers = {
        (teacher, pair)
        for name, folds in missing.items()
        for fold in folds
        if is_nested(params.members[name], fold)
        for teacher in ancestors(params, name)
        for pair in teacher_models(params.members[name], params.prepare.folds, fold)
    }
    return sorted(teachers)


def units_to_blend(
    work: Path, params: Params, prepared: Prepared, missing: Mapping[str, Sequence[int]], excluded: Units
) -> Units:
    """Results that a blend in the kernel needs: predictions of the local fold models, or else the models themselves.

    Includes the measured noise between seeds, which the choice of the blend uses.
    """
    units = [work / "noise"]
    for name in params.members:
        for fold in sorted(set(range(params.prepare.folds)) - set(missing.get(name, ()))):
            views = fold_views_path(work, name, fold)
            predicted = is_current(views, views_dependencies(work, prepared, params, name, fold))
            folder = fold_model_path(work, name, fold).parent
            if path_in_kernel(work, folder) not in excluded:
                units.append(views.parent if predicted else folder)
    return _packed(work, units)


def submission_request_digest(work: Path, params: Params) -> str:
    """Digest of the inputs of a submission (models and ensemble parameters); a new digest needs a new submission."""
    if params.foreign:
        raise UserError(
            f"members.{next(iter(params.foreign))}.predictions are local files, which a submission from a notebook "
            "cannot use; remove the member, or set kaggle.submit to file"
        )
    models = {
        name: [_weights(fold_model_path(work, name, fold)) for fold in range(params.prepare.folds)]
        for name in params.members
    }
    choices = [asdict(getattr(params, block)) for block in ("predict", "policy", "blend", "decision", "honest")]
    return digest_of({"models": models, "choices": choices})


def local_inputs(params: Params, members: Mapping[str, Member]) -> Units:
    """Local images and weights that training reads."""
    return {folder: (Path(folder), files) for folder, files in packing.own_files(params, members).items()}


def _packed(work: Path, folders: Iterable[Path]) -> Units:
    return {path_in_kernel(work, folder): packing.whole_folder(folder) for folder in folders if folder.is_dir()}


def _weights(manifest: Path) -> str:
    recorded = read_manifest(manifest)
    return recorded.files.get("weights.npz", "") if recorded else ""
