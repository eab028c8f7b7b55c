"""Predict out-of-fold and test rows under every view by every fold model, once; the stages after it only use NumPy."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from competition.artifacts.code_digest import code_digest
from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    fold_views_path,
    is_trained,
    views_dependencies,
)
from competition.artifacts.manifest import changed_keys, is_current, read_manifest
from competition.artifacts.runs import Run, blended_runs, stored_runs
from competition.config.errors import UserError
from competition.data.prepared import Prepared
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job
from pipelines.trainer import open_trainer, read_images, start_device

if TYPE_CHECKING:
    from competition.training.trainer import Images, Trainer


def run(job: Job) -> None:
    """members/<member>/<run>/fold<k>/weights.npz -> members/<member>/<run>/fold<k>/views/<digest>/: oof.npz, test.npz"""
    prepared = job.prepared()
    for name, runs in blended_runs(job.work, prepared, job.params, job.overrides).items():
        for run in runs:
            predict_run(job, prepared, run, is_named="@" in name)


def predict_run(job: Job, prepared: Prepared, run: Run, is_named: bool) -> None:
    """Predict by the fold models of a run whose predictions are missing.

    is_named: the run is named in blend.members; nothing can train its missing fold models.
    """
    folds = trained_folds(job, prepared, run, is_named)
    depends = {fold: views_dependencies(run, job.params, fold) for fold in folds}
    stale = {
        fold: depends[fold]
        for fold in folds
        if job.options.force or not is_current(fold_views_path(run, job.params, fold), depends[fold])
    }
    if len(folds) > len(stale):
        job.echo(f"predict {run.title}: {len(folds) - len(stale)} of {len(folds)} fold models current")
    if not stale:
        return
    if run.depends["data"] != prepared.digest or run.depends["code"] != code_digest():
        other = "data" if run.depends["data"] != prepared.digest else "code"
        raise UserError(
            f"run {run.label} was trained with other {other} and its fold models have no predictions under these views; "
            f"remove it from blend.members, or return to the {other} and predict.views that it was predicted with"
        )
    predict_folds(job, prepared, run, stale)


def trained_folds(job: Job, prepared: Prepared, run: Run, is_named: bool) -> list[int]:
    """Folds whose model is current.

    Raises UserError with the command that trains the others, unless --allow-partial is set.
    """
    folds = range(job.params.prepare.folds)
    current = [fold for fold in folds if is_trained(run, fold)]
    missing = [fold for fold in folds if fold not in current]
    if missing and not job.options.allow_partial:
        reasons = ", ".join(f"fold {fold} ({reason_of(run, fold)})" for fold in missing)
        if is_named:
            raise UserError(f"run {run.label} lacks {reasons}; `make predict ALLOW_PARTIAL=1` predicts without it")
        fold_option = f" FOLD={missing[0]}" if len(missing) == 1 else ""
        raise UserError(
            f"member {run.title} lacks {reasons}{earlier_run(job, run)}; `make train MEMBER={run.name}{fold_option}` trains "
            "it, `make predict ALLOW_PARTIAL=1` predicts without it"
        )
    return current


def reason_of(run: Run, fold: int) -> str:
    """Why a fold model is not current."""
    manifest = read_manifest(fold_model_path(run, fold))
    if manifest is None:
        return "not trained"
    return "; ".join(changed_keys(manifest.depends, fold_model_dependencies(run, fold))[:3]) or "its files were damaged"


def earlier_run(job: Job, run: Run) -> str:
    """What differs from the member's newest other run, if there is one, as part of a sentence."""
    others = [other for other in stored_runs(job.work, run.name) if other.digest != run.digest]
    if run.folder.exists() or not others:
        return ""
    changes = changed_keys(others[-1].depends, run.depends)
    return f" in this run (its run {others[-1].label} differs: {'; '.join(changes[:3])})"


def predict_folds(job: Job, prepared: Prepared, run: Run, stale: Mapping[int, dict[str, Any]]) -> None:
    """Predict by the fold models in `stale`: fold -> what its predictions depend on."""
    device, views, name = start_device(job), job.params.predict.views, run.title
    from competition.training.view_cost import transform_seconds

    job.echo(f"predict {name}: on {device.replicas} x {device.kind}; {len(views)} views of {len(stale)} fold models")
    trainer = open_trainer(job, prepared, run.member, name, device=device, parts=("train",))
    test = read_images(job, prepared, run.member, ("test",), name)
    transforms = transform_seconds(trainer.engine, views, run.member.image_size)
    costs: dict[str, float] = {}  # view -> seconds for 1,000 images by the last fold model
    with progress_bar(len(stale), f"predict {name}") as bar:
        for fold, depends in stale.items():
            manifest, weights = fold_views_path(run, job.params, fold), fold_model_path(run, fold).parent
            make = partial(predict_fold, trainer, test, weights, manifest.parent, fold, transforms)
            costs = job.cached(f"predict {name} fold {fold}", manifest, depends, make).result["seconds_per_1000"]
            bar.update()
    slowest = max(costs, key=costs.__getitem__)
    job.echo(
        f"predict {name}: a fold model takes {sum(costs.values()):.3g} s for 1,000 images under all {len(costs)} views, "
        f"{costs[slowest]:.3g} s under {slowest}, the slowest"
    )


def predict_fold(
    trainer: "Trainer", test: "Images", model: Path, folder: Path, fold: int, transforms: Mapping[str, float]
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """Predict the held-out rows and the test rows under every view in `transforms`, and write them to `folder`.

    model: folder of the fold model.  transforms: view -> seconds of its transform of one batch.
    """
    from competition.training.checkpoint import load_arrays
    from competition.training.view_cost import seconds_per_1000

    weights, views, train = load_arrays(model / "weights.npz"), tuple(transforms), trainer.images
    held_out_rows, test_rows = np.flatnonzero(train.folds == fold), np.arange(len(test.ids))
    files = [folder / "oof.npz", folder / "test.npz"]
    trainer.load_weights(weights, (len(held_out_rows) + len(test_rows)) * len(views))
    trainer.predict(None, train, held_out_rows, views).save(files[0])
    batch = trainer.engine.predict_batch
    started = perf_counter()  # only after the first prediction, for which the program was compiled
    test_predictions = trainer.predict(None, test, test_rows, views)
    if not len(test_rows):  # a competition without test images: time a batch of held-out rows instead
        trainer.predict(None, train, held_out_rows[:batch], views)
    seconds = perf_counter() - started
    test_predictions.save(files[1])
    costs = seconds_per_1000(seconds, -(-max(len(test_rows), 1) // batch) * batch, transforms, batch)
    return files, {"oof_rows": len(held_out_rows), "test_rows": len(test_rows), "seconds_per_1000": costs}


if __name__ == "__main__":
    main("predict")
