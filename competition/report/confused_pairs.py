"""The classes that are confused most, with pictures of both side by side."""

from collections.abc import Sequence

import numpy as np

from competition.data.cache import Pixels
from competition.report.page import Block, SideBySide, Tile
from competition.report.pictures import SMALL_SIZE, data_uri

PAIRS = 6
WRONG, RIGHT = 3, 2  # pictures


def worst_pairs(confusion: np.ndarray, limit: int = PAIRS) -> list[tuple[int, int]]:
    """Pairs of classes (a, b) with the most confusions in both directions, a before b.  confusion: (C, C) of rows."""
    both = np.triu(confusion + confusion.T, 1)
    order = np.argsort(-both, axis=None, kind="stable")[:limit]
    cells = [tuple(map(int, np.unravel_index(cell, both.shape))) for cell in order]
    return [(a, b) for a, b in cells if both[a, b]]


def pair_blocks(
    confusion: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    names: Sequence[str],
    pixels_of: Pixels | None,
    train_rows: np.ndarray,
) -> list[Block]:
    """One block per pair: rows of both classes that are right, and those taken for the other class.

    rows: of `classes.honest_rows`.  pixels_of: of the training rows in index order; None: no pictures, no blocks.
    train_rows: (N,) row number in the index of each row.
    """
    if pixels_of is None:
        return []
    ids, labels, predicted, scores = rows
    blocks: list[Block] = []

    def tiles(actual: int, decided: int) -> list[Tile]:
        chosen = np.flatnonzero((labels == actual) & (predicted == decided))
        chosen = chosen[np.argsort(-scores[chosen, decided], kind="stable")][: RIGHT if actual == decided else WRONG]
        if not len(chosen):
            return []
        images = pixels_of[train_rows[chosen]]
        return [
            Tile(*data_uri(image, SMALL_SIZE), [f"{scores[n, decided]:.2f}", f"{names[actual]}, id {ids[n]}"])
            for n, image in zip(chosen, images, strict=True)
        ]

    for a, b in worst_pairs(confusion):
        groups = [
            (f"{names[a]}, right", tiles(a, a)),
            (f"{names[a]} ✕ taken for {names[b]}: {confusion[a, b]:,} of {confusion[a].sum():,}", tiles(a, b)),
            (f"{names[b]} ✕ taken for {names[a]}: {confusion[b, a]:,} of {confusion[b].sum():,}", tiles(b, a)),
            (f"{names[b]}, right", tiles(b, b)),
        ]
        blocks.append(SideBySide(f"{names[a]} and {names[b]}", [group for group in groups if group[1]]))
    return blocks
