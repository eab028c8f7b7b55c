"""Images per second of each part of training, alone and together: which of them is the slowest, and what helps."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from competition.artifacts.dependencies import member_with_tuned_values, training_parts
from competition.artifacts.manifest import write_json
from competition.config.params import Member
from competition.data.cache import CacheBudget, is_streamed
from competition.data.prepared import Prepared, load_prepared
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.runner import Job, display_path, image_cache, selected_folds, selected_members

DECODED = 512  # images that are decoded anew, at most: decoding is as fast for the next thousand


def run(job: Job) -> None:
    """data/ -> bench.json; nothing is trained that counts"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared, found = load_prepared(job.path("data")), {}
    start_backend(job)
    for name in selected_members(job):
        member, _ = member_with_tuned_values(job.work, job.params, name, job.overrides)
        job.echo(f"bench {name}: {member.architecture} at {member.image_size} px, {member.train.batch} images a step")
        found[name] = bench(job, prepared, name, member)
    write_json(job.path("bench.json"), found)
    job.echo(f"bench: {display_path(job.path('bench.json'))} holds it all")


def bench(job: Job, prepared: Prepared, name: str, member: Member) -> dict[str, Any]:
    """Images per second, by part. Says each as soon as it is known."""
    from competition.training.bench import parts
    from competition.training.device import open_device
    from competition.training.trainer import Trainer

    seconds: dict[str, float] = {}

    def say(part: str, images: int, took: float, what: str) -> None:
        seconds[part] = images / took
        job.echo(f"bench {name}: {images / took:>10,.0f} images/s  {what}")

    decode, there = load(job, prepared, member, anew=True), load(job, prepared, member, anew=False)
    rows = np.arange(min(DECODED, len(there.ids)))
    say("decoded", len(rows), timed(lambda: decode.pixels[rows]), "read from the record files and decoded")
    shuffled = np.random.default_rng(0).permutation(len(there.ids))[: 4 * DECODED]
    kept = "decoded anew: they fit no cache" if is_streamed(there.pixels) else "from the decoded cache, in random order"
    say("read", len(shuffled), timed(lambda: there.pixels[shuffled]), kept)
    device = open_device(job.params.device, job.path("cache", "compiled"))
    competition = prepared.competition
    trainer = Trainer(member, there, len(competition.classes), competition.metric, device, job.params.predict.batch)
    found, batch = parts(trainer, selected_folds(job)[0]), trainer.engine.batch
    say("augmented", batch, found.batch, "read, augmented and batched: what the input pipeline can do")
    say("step", batch, found.waiting.alone, f"learned from data that is there, on {device.replicas} x {device.kind}")
    say("trained", batch, found.waiting.step, "learned in training, both together")
    job.echo(f"bench {name}: {found.waiting.told(member.train, is_streamed(there.pixels))}")
    return {"images_per_second": seconds, "batch": batch, "waiting": found.waiting.share}


def load(job: Job, prepared: Prepared, member: Member, anew: bool) -> Any:
    """The training images; anew: as they are read where no cache has room."""
    from competition.training.trainer import load_images

    cache = image_cache(job)
    budget = CacheBudget(cache.folder, 0, 0) if anew else cache
    return load_images(
        prepared, training_parts(member), member.image_size, job.params.prepare.fit, budget, lambda *_: None
    )


def timed(make: Callable[[], object]) -> float:
    started = time.perf_counter()
    make()
    return time.perf_counter() - started


if __name__ == "__main__":
    main("bench")
