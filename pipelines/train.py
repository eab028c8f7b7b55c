"""Train every fold model that is not current, in one process: a member is compiled once, its weights reset between folds."""

import csv
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from competition.errors import Refusal
from competition.data.prepared import Prepared, load_prepared
from competition.lineage import fold_depends, fold_model, tuned_member
from competition.manifest import atomic, digest_of, is_current, read_manifest
from competition.params import Member
from pipelines.stage import Bar, Job, add_pick, main, picked_folds, picked_members, progress_bar, shown, start_tensorflow

SIGTERM_EXIT = 143


def run(job: Job) -> None:
    """data/, tune/ -> members/<member>/fold<k>/: weights.npz, history.csv, manifest.json"""
    job.needs(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    members = {name: member_said(job, name) for name in picked_members(job)}
    missing = {name: missing_folds(job, prepared, name, member) for name, member in members.items()}
    for name, member in members.items():
        current = [fold for fold in picked_folds(job) if fold not in missing[name]]
        if current:
            job.say(f"train {name}: {'folds' if len(current) > 1 else 'fold'} {', '.join(map(str, current))} current")
        if missing[name]:
            train_member(job, prepared, name, member, missing[name])
    summary(job, list(members))


def member_said(job: Job, name: str) -> Member:
    member, origins = tuned_member(job.work, job.params, name, job.overrides)
    if origins:
        job.say(f"train {name}: " + ", ".join(f"{key} {value}" for key, value in origins.items()))
    return member


def missing_folds(job: Job, prepared: Prepared, name: str, member: Member) -> list[int]:
    def current(fold: int) -> bool:
        return not job.options.force and is_current(fold_model(job.work, name, fold), fold_depends(prepared, job.params, member, fold))

    return [fold for fold in picked_folds(job) if not current(fold)]


def train_member(job: Job, prepared: Prepared, name: str, member: Member, missing: list[int]) -> None:
    start_tensorflow(job)
    from competition.training.device import open_device
    from competition.training.workshop import Workshop, load_images

    device = open_device(job.params.device)
    job.say(f"train {name}: on {device.replicas} x {device.kind} ({device.reason}); folds {', '.join(map(str, missing))}")
    with progress_bar(None, f"{name}: decoding images") as bar:
        images = load_images(prepared, "train", member.image_size, job.params.prepare.fit, job.path("cache"), bar.update_to)
    competition = prepared.competition
    shop = Workshop(member, images, len(competition.classes), competition.metric, device, job.params.predict.batch)
    with progress_bar(None, name) as bar:
        for done, fold in enumerate(missing):
            manifest = fold_model(job.work, name, fold)
            depends = fold_depends(prepared, job.params, member, fold)
            make = partial(train_fold, job, shop, depends, manifest.parent, bar, (done, len(missing)))
            made = job.piece(f"train {name} fold {fold}", manifest, depends, make)
            bar.clear()
            job.say(f"train {name} fold {fold}: {competition.metric} {made.result['held_out']:.4f} on its held-out rows, {made.result['seconds']:.0f} s")


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
        history = shop.train(fold, member.train, checkpoints, progress, lambda: bool(asked))
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
        table.writerows(asdict(epoch) for epoch in history)
    checkpoints.clear()
    return [folder / "weights.npz", folder / "history.csv"], {"held_out": history[-1].held_out, "loss": history[-1].loss}


def summary(job: Job, names: Iterable[str]) -> None:
    for name in names:
        made = [read_manifest(fold_model(job.work, name, fold)) for fold in range(job.params.prepare.folds)]
        scores = np.array([m.result["held_out"] for m in made if m])
        if len(scores) > 1:
            # The spread over folds, not a standard error: folds share their training rows.
            job.say(f"train {name}: {len(scores)} folds, held-out {scores.mean():.4f} (from {scores.min():.4f} to {scores.max():.4f}) in {shown(job.path('members', name))}")


if __name__ == "__main__":
    main(run, add_pick)
