"""The loader makes batches in threads, ahead of time and within a limit; memory is used again only when it is free."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

import pytest

from competition.images.batch_threads import ALIGNMENT, BatchLoader, Buffers, Work


def test_a_step_out_of_order_is_right_and_leaves_nothing_behind():
    @dataclass(eq=False)
    class Batch:
        step: int

        def __post_init__(self) -> None:
            alive.add(self)

    alive: WeakSet[Batch] = WeakSet()

    with ThreadPoolExecutor(2) as pool:
        loader = BatchLoader(lambda step: ([list], partial(Batch, step)), pool, ahead=3)
        assert [loader.batch(step).step for step in (0, 50, 1, 2)] == [0, 50, 1, 2]
    gc.collect()
    assert {batch.step for batch in alive} <= {3, 4}


def test_an_error_in_any_part_reaches_the_caller() -> None:
    def work(step: int) -> Work[int]:
        def part(n: int) -> None:
            if step == 1 and n == 2:
                raise ValueError("no such image")

        return [partial(part, n) for n in range(4)], lambda: step

    with ThreadPoolExecutor(2) as pool:
        loader = BatchLoader(work, pool, ahead=2)
        assert loader.batch(0) == 0
        with pytest.raises(ValueError, match="no such image"):
            loader.batch(1)
        assert loader.batch(2) == 2


def test_memory_is_used_again_only_when_no_array_refers_to_it() -> None:
    buffers = Buffers((2, 5, 5, 3))
    first = buffers.take()
    assert first.ctypes.data % ALIGNMENT == 0 and first.shape == (2, 5, 5, 3)
    address, part = first.ctypes.data, first[1, 2:]
    del first
    second = buffers.take()
    assert second.ctypes.data != address  # `part` still needs it
    del part
    gc.collect()
    assert buffers.take().ctypes.data == address
