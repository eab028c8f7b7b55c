"""Train every fold model that is not current, in one process: a member is compiled once, its weights reset between folds."""

import csv
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from competition.data.cache import is_streamed
from competition.data.prepared import Prepared, load_prepared
from competition.ensemble.predictions import Predictions, ViewPredictions, join
from competition.errors import Refusal
from competition.lineage import fold_depends, fold_model, training_parts, tuned_member
from competition.manifest import atomic, digest_of, is_current, read_manifest
from competition.params import Member
from competition.params_file import in_training_order
from pipelines.backend import start_backend
from pipelines.progress import Bar, progress_bar
from pipelines.stage import Job, add_pick, image_cache, main, picked_folds, picked_members, shown

SIGTERM_EXIT, HUNG_EXIT = 143, 5
FIRST_PAUSE = 5.0  # seconds before a lost device is opened again; three times as long before each later try


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
            train_persistently(job, name, partial(train_member, job, prepared, name, member, missing))
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


def train_persistently(job: Job, name: str, train: Callable[[Callable[[], None]], None]) -> None:
    """train(alive), watched, and again from its checkpoints when the device was lost."""
    start_backend(job)
    from competition.training.survival import Watch, forget_devices, is_lost, persistently

    limits = job.params.device

    def again(number: int, error: Exception) -> None:
        job.say(
            f"train {name}: the device was lost ({in_one_line(error)}); opening it again, try {number} of {limits.retries}"
        )
        forget_devices()
        time.sleep(FIRST_PAUSE * 3 ** (number - 1))

    def hung() -> None:
        print(
            f"goldfold: no step for {limits.hang_seconds:g} s (device.hang_seconds); this is where it stands:",
            file=sys.stderr,
        )
        faulthandler.dump_traceback()
        print("goldfold: ended; the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
        os._exit(HUNG_EXIT)

    try:
        with Watch(limits.hang_seconds, hung) as alive:
            persistently(lambda: train(alive), limits.retries, again)
    except Exception as error:
        if not is_lost(error):
            raise
        raise Refusal(
            f"the device was lost {limits.retries + 1} times, in the end with: {in_one_line(error)}; "
            "the same command goes on from the last checkpoint (device.retries says how often it is opened again)"
        ) from error


def in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def train_member(
    job: Job, prepared: Prepared, name: str, member: Member, missing: list[int], alive: Callable[[], None]
) -> None:
    """Each fold leaves the list `missing` when it is done."""
    from competition.training.device import open_device
    from competition.training.pace import Pace, Waiting
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
    streamed = is_streamed(images.pixels)
    if streamed:
        job.say(
            f"train {name}: {prod(images.pixels.shape) / 1e9:.1f} GB of decoded images fit neither cache.ram_gigabytes nor "
            "cache.disk_gigabytes (nor the free disk): every image is decoded again each time"
        )
    competition = prepared.competition
    taught = teachers_say(job, member)
    shop = Workshop(
        member, images, len(competition.classes), competition.metric, device, job.params.predict.batch, taught, alive
    )
    with progress_bar(None, name) as bar:

        def slow(waiting: Waiting) -> None:
            bar.clear()
            job.say(f"train {name}: {waiting.told(member.train, streamed)}")

        pace = Pace(slow)
        for done, fold in enumerate(folds := tuple(missing)):
            manifest = fold_model(job.work, name, fold)
            depends = fold_depends(job.work, prepared, job.params, member, fold)
            make = partial(train_fold, job, shop, depends, manifest.parent, bar, (done, len(folds)), alive, pace)
            made = job.piece(f"train {name} fold {fold}", manifest, depends, make)
            missing.remove(fold)
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
    job: Job,
    shop: Any,
    depends: Mapping[str, Any],
    folder: Path,
    bar: Bar,
    place: tuple[int, int],
    alive: Callable[[], None],
    pace: Any,
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """place: (fold models of this member done in this run, of how many), for the time left."""
    from competition.training.checkpoint import Checkpoints, save_arrays
    from competition.training.loop import Diverged, Epoch, Stopped

    member, fold = depends["member"], depends["fold"]
    checkpoints = Checkpoints(folder / "checkpoints", digest_of(depends))
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))

    def progress(step: int, steps: int, text: str) -> None:
        alive()
        bar.set_postfix_str(f"fold {fold}, {text}", refresh=False)
        bar.update_to(place[0] * steps + step, place[1] * steps)

    try:
        trained = shop.train(fold, member.train, checkpoints, progress, lambda: bool(asked), pace=pace)
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
    shop.out_of_fold(fold, trained).save(folder / "oof.npz")
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
