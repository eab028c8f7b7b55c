"""Make consecutive batches in threads, while the one before is used. The number of batches in memory is limited."""

import os
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

Batch = TypeVar("Batch")
BATCHES_IN_MEMORY = 3  # the one that is used next, and those that are being made
ALIGNMENT = 64  # bytes; TensorFlow takes an aligned NumPy array without a copy


@dataclass(frozen=True)
class Loading:
    """How this host makes its batches."""

    threads: int = 0  # 0 = the CPU cores of this process
    in_memory: int = BATCHES_IN_MEMORY  # batches; with 1 none is made while the one before is used
    share: tuple[int, ...] | None = None  # positions in the global batch that this host feeds; None = all
    on_device: bool = False  # colour, erasing, mixup and CutMix are left to the device


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=8)
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """The pool of this process with so many threads. Reading, decoding and OpenCV release the interpreter's lock."""
    return ThreadPoolExecutor(threads or cores(), thread_name_prefix="input")


class Buffers:
    """Memory for the images of batches, used again when nothing refers to it: fresh memory costs a page fault every 4 KiB."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape, self._size = shape, int(np.prod(shape))
        self._unused: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """A uint8 array of this shape at an aligned address, with any content."""
        try:
            memory = self._unused.pop()
        except IndexError:
            memory = np.empty(self._size + ALIGNMENT, np.uint8)
        # Every view of this array refers to it, also those that TensorFlow and JAX hold, so it is freed after them. (Views of a slice
        # of `memory` would refer to `memory` alone.)
        flat = np.frombuffer(memory.data, np.uint8, self._size, -memory.ctypes.data % ALIGNMENT)
        weakref.finalize(flat, self._unused.append, memory)
        return flat.reshape(self._shape)


class BatchLoader(Generic[Batch]):
    """Batches 0, 1, 2, ... Any order is correct, because a batch depends on its number only."""

    def __init__(self, make: Callable[[int], Batch], in_memory: int, end: int = sys.maxsize) -> None:
        """make: number -> its batch.  in_memory: see Loading.  end: batches from this number on are made only when asked for."""
        self._make, self._in_memory, self._end = make, in_memory, end
        # Each waits for the parts of a batch, which threads of `thread_pool` make.
        self._makers = ThreadPoolExecutor(in_memory, "batch")
        self._pending: dict[int, Future[Batch]] = {}
        self._lock = Lock()

    def batch(self, number: int) -> Batch:
        """The batch of this number. Waits for it, and starts those that follow. Raises what `make` raises."""
        with self._lock:
            numbers = range(number, max(number + 1, min(number + self._in_memory, self._end)))
            # A number out of order, as from an iterator of an earlier epoch, must not leave batches in memory.
            for dropped in self._pending.keys() - set(numbers):
                self._pending[dropped].cancel()
            self._pending = {n: self._pending.get(n) or self._makers.submit(self._make, n) for n in numbers}
            future = self._pending.pop(number)
        return future.result()
