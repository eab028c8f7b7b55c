"""The local engine: the shard function in several processes of this machine."""

import multiprocessing
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from competition.config.errors import UserError, counted
from competition.convert.shard import Outcome, Recipe, Shard, convert_shard

POLL = 0.3  # seconds between two reports of progress
LOST_WORKERS = 3  # times in a row that workers may die without finishing a shard

_images_done: MutableSequence[int] = []  # in a worker: the array shared with the parent


def convert_shards(
    shards: Sequence[Shard], recipe: Recipe, processes: int, on_progress: Callable[[int], None] = lambda images: None
) -> Iterator[Outcome]:
    """Yield the outcome of each shard as it finishes. on_progress: called with the number of converted images.

    If a worker is killed, its shard and those of the other workers are started again; finished shards are kept.
    Raises UserError of a shard, or if workers die again and again. Works under the start method "spawn".
    """
    pending = {(shard.part, shard.name): shard for shard in shards}
    images, lost = sum(len(shard.rows) for shard in shards), 0
    while pending:
        before, finished = len(pending), images - sum(len(shard.rows) for shard in pending.values())
        try:
            for outcome in _in_processes(list(pending.values()), recipe, processes, finished, on_progress):
                del pending[outcome.part, outcome.name]
                yield outcome
        except BrokenProcessPool:
            lost = 0 if len(pending) < before else lost + 1
            if lost == LOST_WORKERS:
                raise UserError(
                    f"a conversion process was killed {counted(lost, 'time')} before it finished a shard, perhaps for lack of memory; "
                    "set convert.processes or convert.shard_megabytes lower"
                ) from None


def _in_processes(
    shards: Sequence[Shard], recipe: Recipe, processes: int, finished: int, on_progress: Callable[[int], None]
) -> Iterator[Outcome]:
    """finished: images of the shards that were finished before."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with TensorFlow's threads may hang
    # Converted images of each shard. Without a lock, which a killed worker might hold: only one worker writes a shard's number.
    counts = context.RawArray("q", len(shards))
    with ProcessPoolExecutor(
        min(processes, len(shards)), mp_context=context, initializer=_share_counts, initargs=(counts,)
    ) as pool:
        # The largest first, so that no process works alone at the end.
        order = enumerate(sorted(shards, key=lambda shard: -len(shard.rows)))
        futures = {pool.submit(convert_shard, shard, recipe, partial(_count_image, number)) for number, shard in order}
        try:
            while futures:
                done, futures = wait(futures, timeout=POLL, return_when=FIRST_COMPLETED)
                on_progress(finished + sum(counts))
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _share_counts(counts: MutableSequence[int]) -> None:
    global _images_done
    _images_done = counts


def _count_image(shard: int) -> None:
    _images_done[shard] += 1
