"""Images per second of each part of training, alone and together: which part is the slowest, and what helps."""

import tempfile
from pathlib import Path

import numpy as np

from competition.config.errors import counted
from competition.config.params import Member
from competition.files.manifest import write_json
from competition.input_pipeline.decoded_cache import CacheBudget
from competition.input_pipeline.decoded_rows import is_streamed
from competition.workspace.dependencies import training_parts
from competition.workspace.studies import tuned_member
from pipelines.execution.open_trainer import open_network_trainer, read_images, start_device
from pipelines.execution.selection import networks_to_train, selected_folds
from pipelines.execution.speed import timed
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path

MAX_DECODED = 512  # images that are decoded again, at most: decoding is as fast for the next thousand


def run(job: Job) -> None:
    """data/ -> bench.json; no fold model is changed"""
    _, results = job.prepared, {}  # an error before anything is started
    for name in networks_to_train(job, "bench"):
        member = tuned_member(job.workspace, name)
        batch = counted(member.train.batch, "image")
        job.echo(f"bench {name}: {member.architecture} at {member.image_size} px, {batch} a step")
        results[name] = bench_member(job, name, member)
    write_json(job.path("bench.json"), results)
    job.echo(f"bench: all results are in {display_path(job.path('bench.json'))}")


def bench_member(job: Job, name: str, member: Member) -> dict[str, object]:
    """Images per second of each part, each printed as soon as it is measured."""
    device = start_device(job)
    from competition.training.bench import time_parts

    speeds: dict[str, float] = {}

    def record(part: str, images: int, seconds: float, description: str) -> None:
        speeds[part] = images / seconds
        job.echo(f"bench {name}: {images / seconds:>10,.0f} images/s  {description}")

    # The cache's own folder would answer with images that are decoded already.
    with tempfile.TemporaryDirectory() as empty:
        cache = CacheBudget(Path(empty), ram=0, disk=0)
        uncached = read_images(job, member, training_parts(member), name, cache).pixels
        rows = np.arange(min(MAX_DECODED, uncached.shape[0]))
        seconds = timed(lambda: uncached[rows])
    record("decoded", len(rows), seconds, "read from the record files and decoded, as when the cache is filled")
    trainer = open_network_trainer(job, member, name, device)
    pixels, count = trainer.images.pixels, len(trainer.images.ids)
    shuffled = np.random.default_rng(0).permutation(count)[: 4 * MAX_DECODED]
    streamed = is_streamed(pixels)
    source = (
        "decoded in random order: they fit no cache" if streamed else "copied from the decoded cache, in random order"
    )
    record("read", len(shuffled), timed(lambda: pixels[shuffled]), source)
    times, batch = time_parts(trainer, selected_folds(job)[0]), trainer.engine.batch
    record("augmented", batch, times.batch, "read, augmented and batched: the speed of the input pipeline")
    step_only = f"trained on data already in memory, on {device.replicas} x {device.kind}"
    record("step", batch, times.step_in_memory, step_only)
    record("trained", batch, times.step, "trained with the input pipeline, both together")
    job.echo(f"bench {name}: {times.describe(member.train, streamed)}")
    return {"images_per_second": speeds, "batch": batch, "waiting": times.waiting_share}
