"""The classes that are confused most, with pictures of both side by side."""

from collections.abc import Sequence

import numpy as np

from competition.images.cache import Pixels
from competition.report.mistakes import largest_cells
from competition.report.page import Block, SideBySide, Tile
from competition.report.pictures import SMALL_SIZE, data_uri

PAIRS = 6
WRONG, RIGHT = 3, 2  # pictures


def worst_pairs(confusion: np.ndarray, limit: int = PAIRS) -> list[tuple[int, int]]:
    """Pairs of classes (a, b) with the most confusions in both directions, a before b.  confusion: (C, C) of rows."""
    return largest_cells(np.triu(confusion + confusion.T, 1), limit)


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
    _, labels, predicted, scores = rows
    blocks: list[Block] = []
    for a, b in worst_pairs(confusion):
        groups = []
        for actual, decided in ((a, a), (a, b), (b, a), (b, b)):
            chosen = np.flatnonzero((labels == actual) & (predicted == decided))
            best_first = chosen[np.argsort(-scores[chosen, decided], kind="stable")]
            shown = best_first[: RIGHT if actual == decided else WRONG]
            title = f"{names[actual]}, right"
            if actual != decided:
                title = f"{names[actual]} ✕ taken for {names[decided]}: {len(chosen):,} of {confusion[actual].sum():,}"
            if len(shown):
                groups.append((title, tiles(rows, shown, pixels_of[train_rows[shown]], names)))
        blocks.append(SideBySide(f"{names[a]} and {names[b]}", groups))
    return blocks


def tiles(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    shown: np.ndarray,
    images: np.ndarray,
    names: Sequence[str],
) -> list[Tile]:
    """shown: (n,) row numbers.  images: (n, H, W, 3) uint8 of these rows."""
    ids, labels, predicted, scores = rows
    return [
        Tile(*data_uri(image, SMALL_SIZE), [f"{scores[n, predicted[n]]:.2f}", names[labels[n]], str(ids[n])])
        for n, image in zip(shown, images, strict=True)
    ]
