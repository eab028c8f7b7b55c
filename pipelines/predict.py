"""Predict out-of-fold and test rows under every view by every fold model, once; the stages after it only use NumPy."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    fold_views_path,
    member_with_tuned_values,
    views_dependencies,
)
from competition.artifacts.manifest import changed_keys, is_current, read_manifest
from competition.config.errors import UserError
from competition.config.params import Member
from competition.data.prepared import Prepared, load_prepared
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job
from pipelines.trainer import open_trainer, read_images, start_device

if TYPE_CHECKING:
    from competition.training.trainer import Images, Trainer


def run(job: Job) -> None:
    """members/<member>/fold<k>/weights.npz -> members/<member>/fold<k>/views/: oof.npz, test.npz"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    for name in job.params.members:
        member, _ = member_with_tuned_values(job.work, job.params, name, job.overrides)
        folds = trained_folds(job, prepared, name, member)
        depends = {fold: views_dependencies(job.work, prepared, job.params, name, fold) for fold in folds}
        stale = {
            fold: depends[fold]
            for fold in folds
            if job.options.force or not is_current(fold_views_path(job.work, name, fold), depends[fold])
        }
        if len(folds) > len(stale):
            job.echo(f"predict {name}: {len(folds) - len(stale)} of {len(folds)} fold models current")
        if stale:
            predict_member(job, prepared, name, member, stale)


def trained_folds(job: Job, prepared: Prepared, name: str, member: Member) -> list[int]:
    """Folds whose model is current.

    Raises UserError with the command that trains the others, unless --allow-partial is set.
    """
    current, missing = [], []
    for fold in range(job.params.prepare.folds):
        path, depends = (
            fold_model_path(job.work, name, fold),
            fold_model_dependencies(job.work, prepared, job.params, member, fold),
        )
        if is_current(path, depends):
            current.append(fold)
            continue
        reason = "not trained"
        if manifest := read_manifest(path):
            reason = "; ".join(changed_keys(manifest.depends, depends)[:3]) or "its files were damaged"
        missing.append((fold, reason))
    if missing and not job.options.allow_partial:
        reasons = ", ".join(f"fold {fold} ({reason})" for fold, reason in missing)
        fold_option = f" FOLD={missing[0][0]}" if len(missing) == 1 else ""
        raise UserError(
            f"member {name} lacks {reasons}; `make train MEMBER={name}{fold_option}` trains it, "
            "`make predict ALLOW_PARTIAL=1` predicts without it"
        )
    return current


def predict_member(
    job: Job, prepared: Prepared, name: str, member: Member, stale: Mapping[int, dict[str, Any]]
) -> None:
    """Predict by the fold models in `stale`: fold -> what its predictions depend on."""
    device, views = start_device(job), job.params.predict.views
    from competition.training.view_cost import transform_seconds

    job.echo(f"predict {name}: on {device.replicas} x {device.kind}; {len(views)} views of {len(stale)} fold models")
    trainer = open_trainer(job, prepared, member, name, device=device, parts=("train",))
    test = read_images(job, prepared, member, ("test",), name)
    transforms = transform_seconds(views, trainer.engine.predict_batch, member.image_size)
    costs: dict[str, float] = {}  # view -> seconds for 1,000 images by the last fold model
    with progress_bar(len(stale), f"predict {name}") as bar:
        for fold, depends in stale.items():
            manifest = fold_views_path(job.work, name, fold)
            folder = fold_model_path(job.work, name, fold).parent
            make = partial(predict_fold, trainer, test, folder, fold, transforms)
            costs = job.cached(f"predict {name} fold {fold}", manifest, depends, make).result["seconds_per_1000"]
            bar.update()
    slowest = max(costs, key=costs.__getitem__)
    job.echo(
        f"predict {name}: a fold model takes {sum(costs.values()):.3g} s for 1,000 images under all {len(costs)} views, "
        f"{costs[slowest]:.3g} s under {slowest}, the slowest"
    )


def predict_fold(
    trainer: "Trainer", test: "Images", folder: Path, fold: int, transforms: Mapping[str, float]
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """Predict the held-out rows and the test rows by the fold model in `folder`, under every view in `transforms`.

    transforms: view -> seconds of its transform of one batch.
    """
    from competition.training.checkpoint import load_arrays
    from competition.training.view_cost import seconds_per_1000

    weights, views, train = load_arrays(folder / "weights.npz"), tuple(transforms), trainer.images
    held_out_rows, test_rows = np.flatnonzero(train.folds == fold), np.arange(len(test.ids))
    files = [folder / "views" / "oof.npz", folder / "views" / "test.npz"]
    trainer.predict(weights, train, held_out_rows, views).save(files[0])
    batch = trainer.engine.predict_batch
    started = perf_counter()  # only after the first prediction, for which the program was compiled
    test_predictions = trainer.predict(weights, test, test_rows, views)
    if not len(test_rows):  # a competition without test images: time a batch of held-out rows instead
        trainer.predict(weights, train, held_out_rows[:batch], views)
    seconds = perf_counter() - started
    test_predictions.save(files[1])
    costs = seconds_per_1000(seconds, -(-max(len(test_rows), 1) // batch) * batch, transforms, batch)
    return files, {"oof_rows": len(held_out_rows), "test_rows": len(test_rows), "seconds_per_1000": costs}


if __name__ == "__main__":
    main("predict")
