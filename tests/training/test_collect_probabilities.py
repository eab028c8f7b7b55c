"""Predictions are collected in the order of the rows, and the device never waits for the host."""

import numpy as np

from competition.training.engine import collect_probabilities


def test_a_batch_is_dispatched_before_the_one_before_it_is_fetched() -> None:
    log: list[str] = []

    def dispatch(images: np.ndarray) -> int:
        log.append(f"dispatch {images[0]}")
        return int(images[0])

    def fetch(result: int) -> np.ndarray:
        log.append(f"fetch {result}")
        return np.full((2, 1, 1), result, np.float32)

    batches = ((np.array(rows), np.full(2, n)) for n, rows in enumerate([[5, 6], [7, 8], [9, -1]]))
    probs = collect_probabilities(batches, np.array([9, 5, 6, 7, 8]), dispatch, fetch)
    assert log == ["dispatch 0", "dispatch 1", "fetch 0", "dispatch 2", "fetch 1", "fetch 2"]
    assert probs[:, 0, 0].tolist() == [2, 0, 0, 1, 1]
