"""Duplicate photos: identical bytes (sha256) or near duplicates (perceptual hash, then pixels), and label conflicts.

Where images look alike anyway (scanned digits, drawings on white, X-rays), pairs within these limits are often of different images and
form long chains: of 2,000 digits of MNIST 992 would be one group, in one fold. See pairs_to_keep.

All pairs of 64-bit hashes that differ in few bits are found without comparing every pair: hashes that differ in at most d bits
are equal in at least one of d + 1 parts of their bits, so only pairs with an equal part are compared in full.
"""

from itertools import pairwise

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.prepare.adapter_types import Competition

SLICE = 16_384  # pairs of thumbnails in memory at once; blank images alone may form millions of pairs
BITS = 64
AT_ONCE = 2**20  # pairs in memory at once
# A group of more than CHAIN_ROWS images is a chain if less than DENSE of its pairs are near. Of copies of one photo most are, of images
# that look alike few: .01 of the pairs of those 992 digits.
CHAIN_ROWS, DENSE = 10, 0.5
# In a chain a pair counts only if its images differ by at most CHAIN_SHARE of what each of them differs by from the nearest ALIKE of the
# whole set. Of MNIST's digits the largest group then has 56 rows. Frames of a video stay together: successive ones differ less.
CHAIN_SHARE, ALIKE = 0.35, 0.05
REFERENCES = 500  # images that stand for the set


def duplicate_pairs(index: pd.DataFrame, thumbs: np.ndarray, *, bits: int, pixels: float) -> pd.DataFrame:
    """Return a table of all pairs of readable images of the same photo: a, b (row numbers, a < b), exact, bits, pixels.

    thumbs: (N, 16, 16, 3) uint8.  bits: largest Hamming distance of the 64-bit hashes.  pixels: largest mean absolute
    difference of the thumbnails, 0 to 255. A near duplicate is within both limits, and not a link of a chain.
    No other near pair is missed. Of byte-identical images only the first is compared with other images; each copy is paired with it.
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
    near[near] = pairs_to_keep(left[near], right[near], distance[near], thumbs)
    similar = {"a": left[near], "b": right[near], "exact": False, "bits": apart[near], "pixels": distance[near]}
    return pd.concat([pd.DataFrame(copied), pd.DataFrame(similar)], ignore_index=True)


def pairs_to_keep(left: np.ndarray, right: np.ndarray, distance: np.ndarray, thumbs: np.ndarray) -> np.ndarray:
    """Return which pairs to keep, (P,) bool: of chains only those much nearer than images of the set usually are.

    left, right: (P,) rows.  distance: (P,) of their thumbnails, see duplicate_pairs.
    """
    from scipy.spatial.distance import cdist

    group = merged(np.arange(len(thumbs)), left, right)
    size, pairs = np.bincount(group), np.bincount(group[left], minlength=len(thumbs))
    is_chain = (size > CHAIN_ROWS) & (pairs[: len(size)] < DENSE * size * (size - 1) / 2)
    linked = is_chain[group[left]]
    rows = np.unique(np.r_[left[linked], right[linked]])
    flat = thumbs.reshape(len(thumbs), -1)
    references = flat[np.random.default_rng(0).permutation(len(flat))[:REFERENCES]]
    nearest = min(max(CHAIN_ROWS, round(ALIKE * len(references))), len(references) - 1)
    alike = np.zeros(len(thumbs))  # mean absolute difference from the images that are most alike
    for start in range(0, len(rows), SLICE):
        some = rows[start : start + SLICE]
        apart = cdist(flat[some], references, "cityblock") / flat.shape[1]
        alike[some] = np.partition(apart, nearest)[:, nearest]
    return ~linked | (distance <= CHAIN_SHARE * np.minimum(alike[left], alike[right]))


def near_hashes(hashes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (a, b, distance) of all pairs a < b that differ in at most `most` bits, sorted by a, then b.

    hashes: (N,) uint64.  most: 0 to 63.
    """
    count = len(hashes)
    bounds = [BITS * n // (most + 1) for n in range(most + 2)]
    keys_and_distances = [(np.zeros(0, np.int64), np.zeros(0, np.uint8))]
    for low, high in pairwise(bounds):
        part = (hashes >> np.uint64(low)) & np.uint64(2 ** (high - low) - 1)
        order = np.argsort(part, kind="stable")  # so that rows of an equal part are in order
        for rows in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
            step = max(1, AT_ONCE // max(len(rows), 1))
            for start in range(0, len(rows) - 1, step):
                left, right = rows[start : start + step], rows[start:]
                apart = np.bitwise_count(hashes[left, None] ^ hashes[right])
                i, j = np.nonzero(apart <= most)
                i, j = i[j > i], j[j > i]
                keys_and_distances.append((left[i] * count + right[j], apart[i, j]))
    keys, distances = (np.concatenate(arrays) for arrays in zip(*keys_and_distances, strict=True))
    keys, at = np.unique(keys, return_index=True)  # a pair may be equal in several parts
    a, b = np.divmod(keys, max(count, 1))
    return a, b, distances[at]


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
    return found.assign(label=[competition.label_text(label, as_in_the_table=True) for label in found["label"]])


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
