"""Duplicate photos: identical bytes (sha256) or near duplicates (perceptual hash, then pixels), and label conflicts."""

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.prepare.near_hashes import near_hashes

SLICE = 16_384  # pairs of thumbnails in memory at once; blank images alone may form millions of pairs


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


def group_duplicates(pairs: pd.DataFrame, rows: int) -> np.ndarray:
    """Return the group of each row, (rows,) int: the first row of its connected component in the graph of pairs."""
    return merged(np.arange(rows), pairs["a"].to_numpy(), pairs["b"].to_numpy())


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


def conflicts(index: pd.DataFrame) -> pd.DataFrame:
    """Return group, id and label of all labelled images in groups with more than one label, sorted by group."""
    labelled = index[index["label"] >= 0]
    several = labelled.groupby("group")["label"].transform("nunique") > 1
    return labelled.loc[several, ["group", "id", "label"]].sort_values(["group", "label", "id"], ignore_index=True)


def without_conflicts(index: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Handle photos with more than one label: policy "error" raises UserError, "drop" removes all copies, "keep" keeps them."""
    conflicting = conflicts(index)
    if policy == "error" and len(conflicting):
        raise UserError(
            f"{counted(conflicting['group'].nunique(), 'photo')} under more than one label, {first_few(conflicting['id'], 4)}; "
            "correct them, or set prepare.label_conflicts to drop or keep"
        )
    if policy != "drop":
        return index
    return index[~index["id"].isin(conflicting["id"])].reset_index(drop=True)
