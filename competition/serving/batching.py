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
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from competition.prepare.decoding import BadImage, size_of
from competition.serving.engines import Engine
from competition.serving.requests import Limits

T = TypeVar("T")
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
IDLE_PAUSE = 0.05  # seconds between two looks whether images wait
Answer = tuple[np.ndarray, int]  # (C,) float32 probabilities, class number


class Metrics:
    """Prometheus metrics of one server, in a registry of its own.

    requests: by route and status.  seconds: of a request, by route.  batches: images per call of the model.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("goldfold_requests", "Requests answered", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "goldfold_request_seconds", "Seconds until the answer", ["route"], buckets=SECONDS, registry=self.registry
        )
        self.batches = Histogram(
            "goldfold_batch_images", "Images per call of the model", buckets=SIZES, registry=self.registry
        )
        self.waiting = Gauge("goldfold_waiting_images", "Images that wait for the model", registry=self.registry)


class Batcher:
    """Decodes images in several threads and predicts them in one. Created and used within one event loop."""

    def __init__(self, engine: Engine, limits: Limits, metrics: Metrics) -> None:
        self.engine, self._limits, self._metrics = engine, limits, metrics
        self._decoders = ThreadPoolExecutor(os.cpu_count(), "decode")
        self._runner = ThreadPoolExecutor(1, "model")
        self._queue: deque[tuple[object, asyncio.Future[Answer]]] = deque()
        self._arrived = asyncio.Event()
        self._waiting = 0  # images accepted and not answered
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        self._decoders.shutdown(wait=False, cancel_futures=True)
        self._runner.shutdown(wait=True)

    async def predict(self, images: Sequence[bytes]) -> list[Answer]:
        """Predict encoded images, one or more. Raises BadImage, with the image's number if there are several; HTTPException."""
        if self._waiting + len(images) > self._limits.waiting:
            message = f"{self._limits.waiting} images are waiting; try again"
            raise HTTPException(503, message, {"retry-after": "1"})
        self._waiting += len(images)
        self._metrics.waiting.set(self._waiting)
        loop = asyncio.get_running_loop()
        try:
            decoding = [loop.run_in_executor(self._decoders, self._prepare, data) for data in images]
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
            self._waiting -= len(images)
            self._metrics.waiting.set(self._waiting)

    async def when_idle(self, work: Callable[[], T]) -> T:
        """Call `work` in the thread of the model as soon as no image waits for it."""
        while self._waiting:
            await asyncio.sleep(IDLE_PAUSE)
        return await asyncio.get_running_loop().run_in_executor(self._runner, work)

    def _prepare(self, data: bytes) -> object:
        if len(data) > self._limits.image_bytes:
            raise BadImage(f"{len(data):,} bytes are more than the {self._limits.image_bytes:,} of one image")
        width, height = size_of(data)
        if width * height > self._limits.image_pixels:
            raise BadImage(f"{width} x {height} pixels are more than the {self._limits.image_pixels:,} of one image")
        return self.engine.prepare(data)

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
            self._metrics.batches.observe(len(batch))
            for (_, future), row, number in zip(batch, probs, classes, strict=True):
                if not future.done():
                    future.set_result((row, int(number)))
