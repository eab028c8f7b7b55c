"""The search for near hashes finds exactly the pairs that comparing all pairs finds."""

import numpy as np
import pytest

from competition.prepare import near_hashes as module
from competition.prepare.near_hashes import near_hashes

RANDOM = np.random.default_rng(0)


def with_neighbours(count: int, changed: int) -> np.ndarray:
    """Random hashes, and for each one that differs from it in up to `changed` bits; some are equal."""
    hashes = RANDOM.integers(0, 2**64, count, dtype=np.uint64)
    near = hashes.copy()
    for _ in range(changed):
        near ^= np.uint64(1) << RANDOM.integers(0, 64, count, dtype=np.uint64)
    return RANDOM.permutation(np.concatenate([hashes, near, hashes[: count // 10]]))


@pytest.mark.parametrize("most", [0, 1, 5, 6, 10, 18, 32])
@pytest.mark.parametrize("at_once", [7, 2**20])
def test_it_finds_the_pairs_that_comparing_all_pairs_finds(
    monkeypatch: pytest.MonkeyPatch, most: int, at_once: int
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once if most < 10 else 2**20)
    hashes = with_neighbours(150, 8)
    apart = np.bitwise_count(hashes[:, None] ^ hashes[None])
    expected = [(a, b) for a, b in zip(*np.nonzero(apart <= most), strict=True) if a < b]
    a, b, distance = near_hashes(hashes, most)
    assert list(zip(a, b, strict=True)) == expected and len(expected) >= 15
    np.testing.assert_array_equal(distance, apart[a, b])


@pytest.mark.parametrize("parts", [1, 3, 4, 5, 8])
def test_any_number_of_parts_finds_the_same_pairs(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    hashes = with_neighbours(150, 6)
    expected = near_hashes(hashes, 6)
    monkeypatch.setattr(module, "PARTS", (parts,))
    monkeypatch.setattr(module, "BLOCK", 7)
    for first, second in zip(expected, near_hashes(hashes, 6), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_hashes_have_few_pairs(count: int) -> None:
    a, b, distance = near_hashes(np.full(count, 5, np.uint64), 6)
    assert (a.tolist(), b.tolist(), distance.tolist()) == (([0], [1], [0]) if count == 2 else ([], [], []))
