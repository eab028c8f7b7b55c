"""Probabilities of every view for out-of-fold and test rows by every fold model, once; what follows is NumPy on them."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_manifest,
    fold_views_manifest,
    member_with_tuned_values,
    views_dependencies,
)
from competition.artifacts.manifest import changed_keys, is_current, read_manifest
from competition.config.errors import UserError
from competition.config.params import Member
from competition.data.prepared import Prepared, load_prepared
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, image_cache


def run(job: Job) -> None:
    """members/<member>/fold<k>/weights.npz -> members/<member>/fold<k>/views/: oof.npz, test.npz"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    for name in job.params.members:
        member, _ = member_with_tuned_values(job.work, job.params, name, job.overrides)
        folds = trained_folds(job, prepared, name, member)
        depends = {fold: views_dependencies(job.work, prepared, job.params, name, fold) for fold in folds}
        missing = [
            f for f in folds if job.options.force or not is_current(fold_views_manifest(job.work, name, f), depends[f])
        ]
        if len(folds) > len(missing):
            job.echo(f"predict {name}: {len(folds) - len(missing)} of {len(folds)} fold models current")
        if missing:
            predict_member(job, prepared, name, member, {fold: depends[fold] for fold in missing})


def trained_folds(job: Job, prepared: Prepared, name: str, member: Member) -> list[int]:
    """Folds whose model is there and current; a missing one is an error that says how to train it."""
    found, missing = [], []
    for fold in range(job.params.prepare.folds):
        wanted = fold_model_dependencies(job.work, prepared, job.params, member, fold)
        if is_current(fold_model_manifest(job.work, name, fold), wanted):
            found.append(fold)
            continue
        made = read_manifest(fold_model_manifest(job.work, name, fold))
        why = "; ".join(changed_keys(made.depends, wanted)[:3]) or "its files were damaged" if made else "not trained"
        missing.append((fold, why))
    if missing and not job.options.allow_partial:
        told = ", ".join(f"fold {fold} ({why})" for fold, why in missing)
        raise UserError(
            f"member {name} lacks {told}; `make train MEMBER={name}{f' FOLD={missing[0][0]}' if len(missing) == 1 else ''}` trains it, "
            "`make predict ALLOW_PARTIAL=1` goes on without"
        )
    return found


def predict_member(
    job: Job, prepared: Prepared, name: str, member: Member, missing: Mapping[int, dict[str, Any]]
) -> None:
    start_backend(job)
    from competition.training.device import open_device
    from competition.training.trainer import Trainer, load_images
    from competition.training.view_cost import transform_seconds

    device, params, competition = (
        open_device(job.params.device, job.path("cache", "compiled")),
        job.params,
        prepared.competition,
    )
    job.echo(
        f"predict {name}: on {device.replicas} x {device.kind}; {len(params.predict.views)} views of {len(missing)} fold models"
    )
    with progress_bar(None, f"{name}: decoding images") as bar:
        train, test = (
            load_images(prepared, (part,), member.image_size, params.prepare.fit, image_cache(job), bar.update_to)
            for part in ("train", "test")
        )
    trainer = Trainer(member, train, len(competition.classes), competition.metric, device, params.predict.batch)
    transforms = transform_seconds(params.predict.views, trainer.engine.predict_batch, member.image_size)
    costs: dict[str, float] = {}
    with progress_bar(len(missing), f"predict {name}") as bar:
        for fold, depends in missing.items():
            manifest = fold_views_manifest(job.work, name, fold)
            folder = fold_model_manifest(job.work, name, fold).parent
            make = partial(predict_fold, trainer, train, test, folder, fold, transforms)
            costs = job.cached(f"predict {name} fold {fold}", manifest, depends, make).result["seconds_per_1000"]
            bar.update()
    dearest = max(costs, key=costs.__getitem__)
    job.echo(
        f"predict {name}: a fold model takes {sum(costs.values()):.3g} s for 1,000 images under all {len(costs)} views, "
        f"{costs[dearest]:.3g} s under {dearest}, the dearest"
    )


def predict_fold(
    trainer: Any, train: Any, test: Any, folder: Path, fold: int, transforms: Mapping[str, float]
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """transforms: view -> seconds of its transform of a batch, for what each view costs."""
    from competition.training.checkpoint import load_arrays
    from competition.training.view_cost import seconds_per_1000

    weights, files, seconds = load_arrays(folder / "weights.npz"), [], 0.0
    for part, images in (("oof", train), ("test", test)):
        rows = np.flatnonzero(images.folds == fold) if part == "oof" else np.arange(len(images.ids))
        files.append(folder / "views" / f"{part}.npz")
        started = perf_counter()
        found = trainer.predict(weights, images, rows, tuple(transforms))
        seconds = perf_counter() - started  # what counts is the test rows': before them the program was compiled
        found.save(files[-1])
    batch = trainer.engine.predict_batch
    costs = seconds_per_1000(seconds, -(-len(test.ids) // batch) * batch, transforms, batch)
    counts = {"oof_rows": int((train.folds == fold).sum()), "test_rows": len(test.ids)}
    return files, {**counts, "seconds_per_1000": costs}


if __name__ == "__main__":
    main("predict")
