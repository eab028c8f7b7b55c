"""Distribution of rows over shards, by ids alone, so that the same source always gives the same shards."""

import math
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise

from competition.convert.shard import Shard, SourceImage


def shard_count(rows: int, image_bytes: float, shard_bytes: int) -> int:
    """Return the smallest number of shards of at most about `shard_bytes`. image_bytes: mean size of an encoded image."""
    return max(1, min(rows, math.ceil(rows * image_bytes / shard_bytes)))


def make_shards(part: str, rows: Sequence[SourceImage], count: int, stratify: bool) -> list[Shard]:
    """Distribute rows over `count` shards whose sizes differ by at most 1.

    stratify: each class is spread evenly (counts differ by at most 1) and the rows of a shard are in random order,
    which depends on the ids only; otherwise shards are consecutive runs of the rows.
    """
    if stratify:
        # Dealt like cards, one class after the other, without starting again at the first shard.
        by_class = sorted(rows, key=lambda row: (row.label, _random_order(row)))
        buckets = [sorted(by_class[number::count], key=_random_order) for number in range(count)]
    else:
        bounds = [len(rows) * n // count for n in range(count + 1)]
        buckets = [list(rows[start:end]) for start, end in pairwise(bounds)]
    width = max(2, len(str(count - 1)))
    return [Shard(part, f"{number:0{width}}", tuple(bucket)) for number, bucket in enumerate(buckets)]


def sample(rows: Sequence[SourceImage], most: int) -> list[SourceImage]:
    """Return at most `most` evenly spaced rows."""
    return list(rows[:: max(1, math.ceil(len(rows) / most))])


def _random_order(row: SourceImage) -> bytes:
    return sha256(row.id.encode()).digest()
