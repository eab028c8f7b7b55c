"""Micro-batching: images that arrive while the model is busy are predicted together by its next call.

There is no waiting time: a lone client gets the latency of one image, and under load the batches fill by themselves.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from starlette.exceptions import HTTPException

from competition.files.image_codec import BadImage
from competition.serving.engines import Engine
from competition.serving.requests import Limits

T = TypeVar("T")
IDLE_PAUSE = 0.05  # seconds between two looks whether images wait
Answer = tuple[np.ndarray, int]  # (C,) float32 probabilities, class number


class Batcher:
    """Decodes images in several threads and predicts them in one. Created and used within one event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine, self._limits = engine, limits
        self._decoders = ThreadPoolExecutor(os.cpu_count(), "decode")
        self._runner = ThreadPoolExecutor(1, "model")
        self._queue: deque[tuple[object, asyncio.Future[Answer]]] = deque()
        self._arrived = asyncio.Event()
        self.waiting = 0  # images accepted and not answered
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        self._decoders.shutdown(wait=False, cancel_futures=True)
        self._runner.shutdown(wait=True)

    async def predict(self, images: Sequence[bytes]) -> list[Answer]:
        """Predict encoded images, one or more. Raises BadImage, with the image's number if there are several; HTTPException."""
        if self.waiting + len(images) > self._limits.waiting:
            message = f"{self._limits.waiting} images are waiting; try again"
            raise HTTPException(503, message, {"retry-after": "1"})
        self.waiting += len(images)
        loop = asyncio.get_running_loop()
        try:
            prepare, most_pixels = self.engine.prepare, self._limits.image_pixels
            decoding = [loop.run_in_executor(self._decoders, prepare, data, most_pixels) for data in images]
            results = await asyncio.gather(*decoding, return_exceptions=True)
            for number, result in enumerate(results):
                if isinstance(result, BadImage):
                    raise BadImage(f"instance {number}: {result}" if len(images) > 1 else str(result))
                if isinstance(result, BaseException):
                    raise result
            futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in results]
            self._queue.extend(zip(results, futures, strict=True))
            self._arrived.set()
            # If the client goes away, gather cancels the futures, and the model skips their images.
            return list(await asyncio.gather(*futures))
        finally:
            self.waiting -= len(images)

    async def when_idle(self, work: Callable[[], T]) -> T:
        """Call `work` in the thread of the model as soon as no image waits for it."""
        while self.waiting:
            await asyncio.sleep(IDLE_PAUSE)
        return await asyncio.get_running_loop().run_in_executor(self._runner, work)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch: list[tuple[object, asyncio.Future[Answer]]] = []
            while self._queue and len(batch) < self._limits.batch:
                item, future = self._queue.popleft()
                if not future.done():
                    batch.append((item, future))
            if not batch:
                self._arrived.clear()
                continue
            try:
                probs, classes = await loop.run_in_executor(self._runner, self.engine.run, [item for item, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), row, number in zip(batch, probs, classes, strict=True):
                if not future.done():
                    future.set_result((row, int(number)))
