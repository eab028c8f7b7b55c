"""Make the batches of consecutive steps in threads, a limited number of them ahead of the step that is trained."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

Batch = TypeVar("Batch")
BATCHES_AHEAD = 3  # batches in memory: the one that is used next, and those that are being made
ALIGNMENT = 64  # bytes; TensorFlow takes an aligned NumPy array without a copy


@dataclass(frozen=True)
class Loading:
    """How this host makes its batches."""

    threads: int = 0  # 0 = the CPU cores of this process
    ahead: int = BATCHES_AHEAD
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
        self._memories: list[np.ndarray] = []
        self._lock = Lock()

    def take(self) -> np.ndarray:
        """A uint8 array of this shape at an aligned address, with any content."""
        with self._lock:
            for memory in self._memories:
                # Every array on this memory refers to it, also those that TensorFlow and JAX hold. Here it is referred to
                # by the list, the loop and the argument.
                if sys.getrefcount(memory) <= 3:
                    break
            else:
                memory = np.empty(self._size + ALIGNMENT, np.uint8)
                self._memories.append(memory)
            start = -memory.ctypes.data % ALIGNMENT
            return memory[start : start + self._size].reshape(self._shape)


class BatchLoader(Generic[Batch]):
    """The batches of steps 0, 1, 2, ... Any order is correct, because a batch depends on its step only."""

    def __init__(self, make: Callable[[int], Batch], ahead: int, end: int = sys.maxsize) -> None:
        """make: step -> its batch.  ahead: batches in memory.  end: no batch of this step or later is made ahead."""
        self._make, self._ahead, self._end = make, ahead, end
        # Each waits for the parts of a batch, which threads of `thread_pool` make.
        self._makers = ThreadPoolExecutor(ahead, "batch")
        self._pending: dict[int, Future[Batch]] = {}
        self._lock = Lock()

    def batch(self, step: int) -> Batch:
        """The batch of this step. Waits for it, and starts those that follow. Raises what `make` raises."""
        with self._lock:
            # A step out of order, as from an iterator of an earlier epoch, must not leave batches in memory.
            end = max(step + 1, min(step + self._ahead, self._end))
            steps = range(step, end)
            self._pending = {n: self._pending.get(n) or self._makers.submit(self._make, n) for n in steps}
            future = self._pending.pop(step)
        return future.result()
