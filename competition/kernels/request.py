"""What a kernel is asked to make, and what of this machine goes with it. Paths there are from the project's root."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_manifest,
    fold_views_manifest,
    is_nested,
    model_manifest,
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
Units = dict[str, tuple[Path, Sequence[Path]]]  # place there -> folder here, files of it


def path_in_kernel(work: Path, path: Path) -> str:
    """A path below work/<competition> as it is in the kernel."""
    return path.relative_to(work.parent.parent).as_posix()


def stale_folds(
    work: Path, params: Params, prepared: Prepared, name: str, member: Member, folds: Iterable[AnyFold]
) -> list[AnyFold]:
    """Those whose fold model is not here, or not as it is wanted."""

    def current(fold: ExcludedFolds) -> bool:
        return is_current(
            model_manifest(work, name, fold), fold_model_dependencies(work, prepared, params, member, fold)
        )

    return [fold for fold in folds if not current(fold)]


def units_to_resume(
    work: Path, params: Params, members: Mapping[str, Member], missing: Mapping[str, Sequence[int]]
) -> Units:
    """Fold models to go on with, and teachers whose pupils are trained there."""
    parts = [fold_model_manifest(work, name, fold).parent for name, folds in missing.items() for fold in folds]
    units = [folder for folder in parts if any(folder.glob("checkpoints/*.json"))]
    for teacher in sorted({teacher for name in missing for teacher in ancestors(params, name)}):
        folds = sorted(set(range(params.prepare.folds)) - set(missing.get(teacher, ())))
        units += [fold_model_manifest(work, teacher, fold).parent for fold in folds]
    units += [model_manifest(work, *each).parent for each in nested_teachers(params, missing)]
    return _packed(work, units)


def nested_teachers(params: Params, missing: Mapping[str, Sequence[int]]) -> list[tuple[str, ExcludedFolds]]:
    """(member, two folds) of the teacher models that nested students among the missing fold models learn from."""
    found = {
        (teacher, pair)
        for name, folds in missing.items()
        for fold in folds
        if is_nested(params.members[name], fold)
        for teacher in ancestors(params, name)
        for pair in teacher_models(params.members[name], params.prepare.folds, fold)
    }
    return sorted(found)


def units_to_blend(
    work: Path, params: Params, prepared: Prepared, missing: Mapping[str, Sequence[int]], leaving_out: Units
) -> Units:
    """What a blend there needs of the fold models that are here: their predictions, or else they themselves.

    And what is known of the spread over seeds, which has a say in the choice.
    """
    units = [work / "noise"]
    for name in params.members:
        for fold in sorted(set(range(params.prepare.folds)) - set(missing.get(name, ()))):
            views = fold_views_manifest(work, name, fold)
            predicted = is_current(views, views_dependencies(work, prepared, params, name, fold))
            folder = fold_model_manifest(work, name, fold).parent
            if path_in_kernel(work, folder) not in leaving_out:
                units.append(views.parent if predicted else folder)
    return _packed(work, units)


def submission_request_digest(work: Path, params: Params) -> str:
    """Of all that a submission is made from: models and choices. A changed one asks for another submission."""
    if params.foreign:
        raise UserError(
            f"members.{next(iter(params.foreign))}.predictions are files of this machine, which a submission made in a "
            "notebook cannot use; take the member out, or set kaggle.submit to file"
        )
    made = {
        name: [_weights(fold_model_manifest(work, name, fold)) for fold in range(params.prepare.folds)]
        for name in params.members
    }
    choices = [asdict(getattr(params, block)) for block in ("predict", "policy", "blend", "decision", "honest")]
    return digest_of({"models": made, "choices": choices})


def local_inputs(params: Params, members: Mapping[str, Member]) -> Units:
    """Images and weights of this machine that training reads."""
    return {place: (Path(place), files) for place, files in packing.own_files(params, members).items()}


def _packed(work: Path, folders: Iterable[Path]) -> Units:
    return {path_in_kernel(work, folder): packing.whole_folder(folder) for folder in folders if folder.is_dir()}


def _weights(manifest: Path) -> str:
    made = read_manifest(manifest)
    return made.files.get("weights.npz", "") if made else ""
