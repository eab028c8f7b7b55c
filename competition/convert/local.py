"""The local engine: the shard function in several processes of this machine."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from competition.config.errors import UserError, counted
from competition.convert.shard import Outcome, Recipe, Shard, convert_shard

LOST_WORKERS = 3  # times in a row that workers may die without finishing a shard


def convert_shards(shards: Sequence[Shard], recipe: Recipe, processes: int) -> Iterator[Outcome]:
    """Yield the outcome of each shard as it finishes.

    If a worker is killed, its shard and those of the other workers are started again; finished shards are kept.
    Raises UserError of a shard, or if workers die again and again. Works under the start method "spawn".
    """
    pending = {(shard.part, shard.name): shard for shard in shards}
    lost = 0
    while pending:
        before = len(pending)
        context = multiprocessing.get_context("spawn")  # a fork of a process with TensorFlow's threads may hang
        pool = ProcessPoolExecutor(min(processes, before), mp_context=context)
        try:
            # The largest first, so that no process works alone at the end.
            order = sorted(pending.values(), key=lambda shard: -len(shard.rows))
            for future in as_completed([pool.submit(convert_shard, shard, recipe) for shard in order]):
                outcome = future.result()
                del pending[outcome.part, outcome.name]
                yield outcome
        except BrokenProcessPool:
            lost = 0 if len(pending) < before else lost + 1
            if lost == LOST_WORKERS:
                raise UserError(
                    f"a conversion process was killed {counted(lost, 'time')} before it finished a shard, perhaps for lack of memory; "
                    "set convert.processes or convert.shard_megabytes lower"
                ) from None
        finally:
            pool.shutdown(cancel_futures=True)
