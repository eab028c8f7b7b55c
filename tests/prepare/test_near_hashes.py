"""The search for near hashes finds exactly the pairs that comparing all pairs finds."""

import numpy as np
import pytest

from competition.prepare import duplicates
from competition.prepare.duplicates import near_hashes

RANDOM = np.random.default_rng(0)


def with_neighbours(count: int, changed: int) -> np.ndarray:
    """Random hashes, and for each one that differs from it in up to `changed` bits; some are equal."""
    hashes = RANDOM.integers(0, 2**64, count, dtype=np.uint64)
    near = hashes.copy()
    for _ in range(changed):
        near ^= np.uint64(1) << RANDOM.integers(0, 64, count, dtype=np.uint64)
    return RANDOM.permutation(np.concatenate([hashes, near, hashes[: count // 10]]))


@pytest.mark.parametrize("most", [0, 6])
@pytest.mark.parametrize("parts", [1, 3, 5, 8])
def test_any_number_of_parts_finds_the_pairs_that_comparing_all_pairs_finds(
    monkeypatch: pytest.MonkeyPatch, parts: int, most: int
) -> None:
    hashes = with_neighbours(150, 6)
    apart = np.bitwise_count(hashes[:, None] ^ hashes[None])
    expected = [(a, b, apart[a, b]) for a, b in zip(*np.nonzero(apart <= most), strict=True) if a < b]
    monkeypatch.setattr(duplicates, "AT_ONCE", 701)
    monkeypatch.setattr(duplicates, "PARTS", (parts,))
    monkeypatch.setattr(duplicates, "BLOCK", 7)
    assert list(zip(*near_hashes(hashes, most), strict=True)) == expected and len(expected) >= 15


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_hashes_have_few_pairs(count: int) -> None:
    a, b, distance = near_hashes(np.full(count, 5, np.uint64), 6)
    assert (a.tolist(), b.tolist(), distance.tolist()) == (([0], [1], [0]) if count == 2 else ([], [], []))
