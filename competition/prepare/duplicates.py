"""Duplicate photos: identical bytes (sha256) or near duplicates (perceptual hash, then pixels), and label conflicts.

All pairs of 64-bit hashes that differ in few bits are found without comparing every pair (multi-index hashing, Norouzi et al.
2012). Hashes that differ in at most d bits differ, in at least one of p parts of their bits, in at most d // p bits. Pairs with
such a part are found by looking up each value of the part with up to d // p bits changed; only they are compared in full.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import comb

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.prepare.adapter_types import Competition

SLICE = 16_384  # pairs of thumbnails in memory at once; blank images alone may form millions of pairs
BITS = 64
PARTS = (1, 3, 4, 5, 6, 7, 8)  # 1: all pairs are compared; the table of a half would need 32 GB
AT_ONCE = 2**20  # pairs in memory at once
BLOCK = 256  # rows of the distance matrix in memory at once, where all pairs are compared
# Seconds on one core of a look-up, of comparing one pair that it finds, and of one of all pairs; they only choose the parts.
LOOKUP, PAIR, COMPARISON = 6e-9, 6e-8, 2e-9


def duplicate_pairs(index: pd.DataFrame, thumbs: np.ndarray, *, bits: int, pixels: float) -> pd.DataFrame:
    """Return a table of all pairs of readable images of the same photo: a, b (row numbers, a < b), exact, bits, pixels.

    thumbs: (N, 16, 16, 3) uint8.  bits: largest Hamming distance of the 64-bit hashes.  pixels: largest mean absolute
    difference of the thumbnails, 0 to 255. A near duplicate is within both limits.
    No near pair is missed. Of byte-identical images only the first is compared with other images; each copy is paired with it.
    """
    readable = np.flatnonzero((index["problem"] == "").to_numpy())
    digest = index["sha256"].to_numpy()[readable]
    _, at, which = np.unique(digest, return_index=True, return_inverse=True)
    original = readable[at[which]]  # unique returns first occurrences
    copies = original != readable
    copied = {"a": original[copies], "b": readable[copies], "exact": True, "bits": 0, "pixels": 0.0}

    rows = np.sort(readable[at])
    hashes = np.array([int(text, 16) for text in index["phash"].to_numpy()[rows]], np.uint64)
    a, b, apart = near_hashes(hashes, bits)
    left, right = rows[a], rows[b]
    distance = np.zeros(len(left))  # mean absolute difference of the thumbnails
    for start in range(0, len(left), SLICE):
        here = slice(start, start + SLICE)
        distance[here] = np.abs(thumbs[left[here]].astype(np.int16) - thumbs[right[here]]).mean((1, 2, 3))
    near = distance <= pixels
    similar = {"a": left[near], "b": right[near], "exact": False, "bits": apart[near], "pixels": distance[near]}
    return pd.concat([pd.DataFrame(copied), pd.DataFrame(similar)], ignore_index=True)


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


def merged(groups: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return groups, (N,) int, after the pairs of rows (a, b) are added; a group's number is that of its first row."""
    from scipy.sparse import coo_array  # a tenth of a second that commands which make no groups need not wait for
    from scipy.sparse.csgraph import connected_components

    _, first_row, which = np.unique(groups, return_index=True, return_inverse=True)
    left, right = np.r_[a, np.arange(len(groups))], np.r_[b, first_row[which]]
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(len(groups), len(groups)))
    _, component = connected_components(graph, directed=False)
    _, first_row, which = np.unique(component, return_index=True, return_inverse=True)
    return first_row[which]


def conflicts(index: pd.DataFrame, competition: Competition) -> pd.DataFrame:
    """Return group, id and label, as in the table of labels, of all labelled images of a photo with more than one, by group.

    Near duplicates may differ a little in a number, so that in a regression only identical images conflict.
    """
    labelled = index[index["label"] >= 0]
    photo = ["group", "sha256"] if competition.target == "regression" else ["group"]
    several = labelled.groupby(photo)["label"].transform("nunique") > 1
    found = labelled.loc[several, ["group", "id", "label"]].sort_values(["group", "label", "id"], ignore_index=True)
    return found.assign(label=[competition.label_value(label) for label in found["label"]])


def without_conflicts(index: pd.DataFrame, policy: str, competition: Competition) -> pd.DataFrame:
    """Handle photos with more than one label: policy "error" raises UserError, "drop" removes all copies, "keep" keeps them."""
    conflicting = conflicts(index, competition)
    if policy == "error" and len(conflicting):
        raise UserError(
            f"{counted(conflicting['group'].nunique(), 'photo')} under more than one label, {first_few(conflicting['id'], 4)}; "
            "correct them, or set prepare.label_conflicts to drop or keep"
        )
    if policy != "drop":
        return index
    return index[~index["id"].isin(conflicting["id"])].reset_index(drop=True)
