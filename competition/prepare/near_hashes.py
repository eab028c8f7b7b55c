"""All pairs of 64-bit hashes that differ in few bits, without comparing every pair (multi-index hashing, Norouzi et al. 2012).

Hashes that differ in at most d bits differ, in at least one of p parts of their bits, in at most d // p bits. Pairs with
such a part are found by looking up each value of the part with up to d // p bits changed; only they are compared in full.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import comb

import numpy as np

BITS = 64
PARTS = (1, 3, 4, 5, 6, 7, 8)  # 1: all pairs are compared; the table of a half would need 32 GB
AT_ONCE = 2**20  # pairs in memory at once
BLOCK = 256  # rows of the distance matrix in memory at once, where all pairs are compared
# Seconds on one core of a look-up, of comparing one pair that it finds, and of one of all pairs; they only choose the parts.
LOOKUP, PAIR, COMPARISON = 6e-9, 6e-8, 2e-9


def near_hashes(hashes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (a, b, distance) of all pairs a < b that differ in at most `most` bits, sorted by a, then b.

    hashes: (N,) uint64.  most: 0 to 63.
    """
    count = len(hashes)
    seconds = {}  # by the number of parts, for random hashes
    for number in PARTS:
        width, pairs = BITS // number, count**2 / 2
        masks = sum(comb(width, changed) for changed in range(most // number + 1))
        seconds[number] = number * masks * (LOOKUP * min(count, 2**width) + PAIR * pairs / 2**width)
        if number == 1:
            seconds[number] = COMPARISON * pairs
    parts = min(seconds, key=lambda number: seconds[number])
    keys_and_distances = [(np.zeros(0, np.int64), np.zeros(0, np.uint8))]
    for a, b in _candidates(hashes, most, parts):
        apart = np.bitwise_count(hashes[a] ^ hashes[b])
        near = apart <= most
        first, second = np.minimum(a[near], b[near]), np.maximum(a[near], b[near])
        keys_and_distances.append((first * count + second, apart[near]))
    keys, distances = (np.concatenate(arrays) for arrays in zip(*keys_and_distances, strict=True))
    keys, at = np.unique(keys, return_index=True)  # a pair may be near in several parts
    a, b = np.divmod(keys, max(count, 1))
    return a, b, distances[at]


def _candidates(hashes: np.ndarray, most: int, parts: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(a, b): pieces of a set of pairs that contains all that differ in at most `most` bits."""
    if parts == 1:
        for start in range(0, len(hashes), BLOCK):
            apart = np.bitwise_count(hashes[start : start + BLOCK, None] ^ hashes[None, start:])
            a, b = np.nonzero(apart <= most)
            yield start + a[b > a], start + b[b > a]
        return
    bounds = [round(BITS * n / parts) for n in range(parts + 1)]
    for low, high in pairwise(bounds):
        part = ((hashes >> np.uint64(low)) & np.uint64(2 ** (high - low) - 1)).astype(np.int64)
        yield from _pairs_with_near_part(part, high - low, most // parts)


def _pairs_with_near_part(part: np.ndarray, width: int, radius: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of positions whose values differ in at most `radius` bits, each once, in pieces.

    part: (N,) int64 in [0, 2^width).
    """
    order = np.argsort(part, kind="stable")
    values, starts, counts = np.unique(part[order], return_index=True, return_counts=True)
    place = np.full(2**width, -1, np.int32)
    place[values] = np.arange(len(values))
    for changed in range(radius + 1):
        for bits in combinations(range(width), changed):
            others = place[values ^ sum(1 << bit for bit in bits)]
            first = np.flatnonzero(others >= np.arange(len(values)))  # each pair of values once; a value with itself
            second = others[first]
            yield from _expanded(order, starts, counts, first, second, changed == 0)


def _expanded(
    order: np.ndarray, starts: np.ndarray, counts: np.ndarray, first: np.ndarray, second: np.ndarray, is_same: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs of the members of two groups, for each of n pairs of groups, in pieces.  is_same: the groups are equal.

    order: members of all groups.  starts, counts: (G,) places of each group in `order`.  first, second: (n,) groups.
    """
    sizes = counts[first] * counts[second]
    totals = np.cumsum(sizes)
    done = 0
    while done < (totals[-1] if len(totals) else 0):
        numbers = np.arange(done, min(done + AT_ONCE, totals[-1]))
        done += len(numbers)
        pair = np.searchsorted(totals, numbers, side="right")
        i, j = np.divmod(numbers - (totals[pair] - sizes[pair]), counts[second[pair]])
        if is_same:
            keep = i < j
            pair, i, j = pair[keep], i[keep], j[keep]
        yield order[starts[first[pair]] + i], order[starts[second[pair]] + j]
