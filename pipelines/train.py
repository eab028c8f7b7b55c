"""Train every fold model that is not current, in one process: a member is compiled once, its weights reset between folds."""

import csv
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from competition.data.prepared import Prepared, load_prepared
from competition.ensemble.predictions import Predictions, ViewPredictions, join
from competition.errors import Refusal
from competition.lineage import fold_depends, fold_model, training_parts, tuned_member
from competition.manifest import atomic, digest_of, is_current, read_manifest
from competition.params import Member
from competition.params_file import in_training_order
from pipelines.stage import (
    Bar,
    Job,
    add_pick,
    image_cache,
    main,
    picked_folds,
    picked_members,
    progress_bar,
    shown,
    start_backend,
)

SIGTERM_EXIT = 143


def run(job: Job) -> None:
    """data/, tune/ -> members/<member>/fold<k>/: weights.npz, history.csv, manifest.json"""
    job.needs(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    names = [name for name in in_training_order(job.params) if name in picked_members(job)]
    for name in names:
        member = member_said(job, name)
        missing = missing_folds(job, prepared, name, member)
        current = [fold for fold in picked_folds(job) if fold not in missing]
        if current:
            job.say(f"train {name}: {'folds' if len(current) > 1 else 'fold'} {', '.join(map(str, current))} current")
        if missing:
            train_member(job, prepared, name, member, missing)
    summary(job, names)


def member_said(job: Job, name: str) -> Member:
    member, origins = tuned_member(job.work, job.params, name, job.overrides)
    if origins:
        job.say(f"train {name}: " + ", ".join(f"{key} {value}" for key, value in origins.items()))
    return member


def missing_folds(job: Job, prepared: Prepared, name: str, member: Member) -> list[int]:
    def current(fold: int) -> bool:
        return not job.options.force and is_current(
            fold_model(job.work, name, fold), fold_depends(job.work, prepared, job.params, member, fold)
        )

    return [fold for fold in picked_folds(job) if not current(fold)]


def train_member(job: Job, prepared: Prepared, name: str, member: Member, missing: list[int]) -> None:
    start_backend(job)
    from competition.training.device import open_device
    from competition.training.workshop import Workshop, load_images

    device = open_device(job.params.device, job.path("cache", "compiled"))
    job.say(
        f"train {name}: on {device.replicas} x {device.kind} ({device.reason}); folds {', '.join(map(str, missing))}"
    )
    with progress_bar(None, f"{name}: decoding images") as bar:
        images = load_images(
            prepared,
            training_parts(member),
            member.image_size,
            job.params.prepare.fit,
            image_cache(job),
            bar.update_to,
        )
    competition = prepared.competition
    taught = teachers_say(job, member)
    shop = Workshop(
        member, images, len(competition.classes), competition.metric, device, job.params.predict.batch, taught
    )
    with progress_bar(None, name) as bar:
        for done, fold in enumerate(missing):
            manifest = fold_model(job.work, name, fold)
            depends = fold_depends(job.work, prepared, job.params, member, fold)
            make = partial(train_fold, job, shop, depends, manifest.parent, bar, (done, len(missing)))
            made = job.piece(f"train {name} fold {fold}", manifest, depends, make)
            bar.clear()
            said = f"{competition.metric} {made.result['held_out']:.4f} on its held-out rows, {made.result['seconds']:.0f} s"
            if member.train.patience:
                said += f"; epoch {made.result['epoch']}, chosen on these rows (the last epoch: {made.result['held_out_last']:.4f})"
            job.say(f"train {name} fold {fold}: {said}")


def teachers_say(job: Job, member: Member) -> Predictions | None:
    """The mean of the teachers' out-of-fold probabilities, which every training row has from a model that never saw it."""
    if not member.teacher:
        return None
    said = []
    for name in member.teacher:
        files = [fold_model(job.work, name, fold).with_name("oof.npz") for fold in range(job.params.prepare.folds)]
        lacking = [fold for fold, file in enumerate(files) if not file.exists()]
        if lacking:
            raise Refusal(f"teacher {name} lacks fold {lacking[0]}; `make train MEMBER={name}` trains it")
        said.append(join([ViewPredictions.load(file) for file in files]))
    ids = said[0].ids
    return Predictions(ids, np.mean([one.at(ids).view("identity") for one in said], axis=0))


def train_fold(
    job: Job, shop: Any, depends: Mapping[str, Any], folder: Path, bar: Bar, place: tuple[int, int]
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """place: (fold models of this member done in this run, of how many), for the time left."""
    from competition.training.checkpoint import Checkpoints, save_arrays
    from competition.training.loop import Diverged, Epoch, Stopped

    member, fold = depends["member"], depends["fold"]
    checkpoints = Checkpoints(folder / "checkpoints", digest_of(depends))
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))

    def progress(step: int, steps: int, text: str) -> None:
        bar.set_postfix_str(f"fold {fold}, {text}", refresh=False)
        bar.update_to(place[0] * steps + step, place[1] * steps)

    try:
        trained = shop.train(fold, member.train, checkpoints, progress, lambda: bool(asked))
    except Stopped as stopped:
        job.say(f"train: {stopped}, its checkpoint is on disk; the same command goes on from there")
        raise SystemExit(SIGTERM_EXIT) from None
    except Diverged as error:
        raise Refusal(f"{shown(folder)}: {error}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
    save_arrays(folder / "weights.npz", shop.engine.weights())
    with atomic(folder / "history.csv") as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Epoch)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(epoch) for epoch in trained.history)
    shop.held_out(fold).save(folder / "oof.npz")
    files = [folder / name for name in ("weights.npz", "history.csv", "oof.npz")]
    if trained.last is not None:
        files.append(folder / "last.npz")
        save_arrays(files[-1], trained.last)
    checkpoints.clear()
    kept, last = trained.history[trained.kept_epoch - 1], trained.history[-1]
    return files, {"held_out": kept.held_out, "epoch": kept.epoch, "held_out_last": last.held_out, "loss": last.loss}


def summary(job: Job, names: Iterable[str]) -> None:
    for name in names:
        made = [read_manifest(fold_model(job.work, name, fold)) for fold in range(job.params.prepare.folds)]
        scores = np.array([m.result["held_out"] for m in made if m])
        if len(scores) > 1:
            # The spread over folds, not a standard error: folds share their training rows.
            job.say(
                f"train {name}: {len(scores)} folds, held-out {scores.mean():.4f} "
                f"(from {scores.min():.4f} to {scores.max():.4f}) in {shown(job.path('members', name))}"
            )


if __name__ == "__main__":
    main(run, add_pick)
