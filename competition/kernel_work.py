"""What a kernel is asked to make, and what of this machine goes with it. Paths there are from the project's root."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from competition.data.prepared import Prepared
from competition.errors import Refusal
from competition.lineage import (
    fold_depends,
    fold_model,
    fold_views,
    is_nested,
    model_manifest,
    teacher_models,
    views_depends,
)
from competition.manifest import digest_of, is_current, read_manifest
from competition.params import Excluded, Member, Params
from competition.params_file import ancestors
from competition.remote import packing

AnyFold = TypeVar("AnyFold", bound=Excluded)
Units = dict[str, tuple[Path, Sequence[Path]]]  # place there -> folder here, files of it


def there(work: Path, path: Path) -> str:
    """A path below work/<competition> as it is in the kernel."""
    return path.relative_to(work.parent.parent).as_posix()


def missing_folds(
    work: Path, params: Params, prepared: Prepared, name: str, member: Member, folds: Iterable[AnyFold]
) -> list[AnyFold]:
    """Those whose fold model is not here, or not as it is wanted."""

    def current(fold: Excluded) -> bool:
        return is_current(model_manifest(work, name, fold), fold_depends(work, prepared, params, member, fold))

    return [fold for fold in folds if not current(fold)]


def cut_short(work: Path, params: Params, members: Mapping[str, Member], missing: Mapping[str, Sequence[int]]) -> Units:
    """Fold models to go on with, and teachers whose pupils are trained there."""
    parts = [fold_model(work, name, fold).parent for name, folds in missing.items() for fold in folds]
    units = [folder for folder in parts if any(folder.glob("checkpoints/*.json"))]
    for teacher in sorted({teacher for name in missing for teacher in ancestors(params, name)}):
        folds = sorted(set(range(params.prepare.folds)) - set(missing.get(teacher, ())))
        units += [fold_model(work, teacher, fold).parent for fold in folds]
    units += [model_manifest(work, *each).parent for each in nested_teachers(params, missing)]
    return _packed(work, units)


def nested_teachers(params: Params, missing: Mapping[str, Sequence[int]]) -> list[tuple[str, Excluded]]:
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


def to_blend(
    work: Path, params: Params, prepared: Prepared, missing: Mapping[str, Sequence[int]], leaving_out: Units
) -> Units:
    """What a blend there needs of the fold models that are here: their predictions, or else they themselves.

    And what is known of the spread over seeds, which has a say in the choice.
    """
    units = [work / "noise"]
    for name in params.members:
        for fold in sorted(set(range(params.prepare.folds)) - set(missing.get(name, ()))):
            views = fold_views(work, name, fold)
            predicted = is_current(views, views_depends(work, prepared, params, name, fold))
            folder = fold_model(work, name, fold).parent
            if there(work, folder) not in leaving_out:
                units.append(views.parent if predicted else folder)
    return _packed(work, units)


def asked(work: Path, params: Params) -> str:
    """Of all that a submission is made from: models and choices. A changed one asks for another submission."""
    if params.foreign:
        raise Refusal(
            f"members.{next(iter(params.foreign))}.predictions are files of this machine, which a submission made in a "
            "notebook cannot use; take the member out, or set kaggle.submit to file"
        )
    made = {
        name: [_weights(fold_model(work, name, fold)) for fold in range(params.prepare.folds)]
        for name in params.members
    }
    choices = [asdict(getattr(params, block)) for block in ("predict", "policy", "blend", "decision", "honest")]
    return digest_of({"models": made, "choices": choices})


def own_files(params: Params, members: Mapping[str, Member]) -> Units:
    """Images and weights of this machine that training reads."""
    return {place: (Path(place), files) for place, files in packing.own_files(params, members).items()}


def _packed(work: Path, folders: Iterable[Path]) -> Units:
    return {there(work, folder): packing.whole_folder(folder) for folder in folders if folder.is_dir()}


def _weights(manifest: Path) -> str:
    made = read_manifest(manifest)
    return made.files.get("weights.npz", "") if made else ""
