"""Images that arrive while the model is busy are predicted together; one client's failure is its own."""

import asyncio
import io
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from competition.files.image_codec import encode

pytest.importorskip("starlette", reason="goldfold[serve] is not installed")

from competition.serving.batching import Batcher
from competition.serving.requests import Limits


class Brightness:
    """A model that waits to be released: the probability of "bright" is the mean of the image."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.released = threading.Event()

    def prepare(self, data: bytes, most_pixels: int) -> float:
        return float(np.asarray(Image.open(io.BytesIO(data))).mean() / 255)

    def run(self, prepared: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        self.released.wait(30)
        self.batches.append(len(prepared))
        if max(prepared) > 0.99:
            raise RuntimeError("too bright")
        bright = np.array(prepared, np.float32)
        return np.stack([1 - bright, bright], 1), (bright > 0.5).astype(np.int64)


def image(value: int) -> bytes:
    return encode(np.full((2, 2), value, np.uint8), "png")


def run(limits: Limits, requests: Sequence[Sequence[int]], goes_away: int | None = None) -> tuple[Brightness, list]:
    """Send requests of images of these brightnesses one after the other; the model answers when all wait.

    goes_away: number of a request whose client goes away while it waits. Exceptions are results.
    """
    engine = Brightness()

    async def all_requests() -> list:
        batcher, tasks = Batcher(engine, limits), []
        for number, values in enumerate(requests):
            tasks.append(asyncio.create_task(batcher.predict([image(value) for value in values])))
            await asyncio.sleep(0.2)
            if number == goes_away:
                tasks[number].cancel()
                await asyncio.sleep(0)
        engine.released.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.stop()
        return results

    return engine, asyncio.run(all_requests())


def test_images_of_a_client_that_goes_away_are_not_predicted_and_do_not_count_as_waiting() -> None:
    # The last request is, together with the one of the client that went away, more than may wait.
    engine, results = run(Limits(waiting=4), [[10], [20] * 3, [30] * 3], goes_away=1)
    assert (len(results[0]), type(results[1]), len(results[2])) == (1, asyncio.CancelledError, 3)
    assert engine.batches == [1, 3]


def test_an_error_of_the_model_reaches_its_requests_and_the_next_ones_get_their_own_answers() -> None:
    engine, results = run(Limits(batch=1), [[255], [100], [50]])
    assert isinstance(results[0], RuntimeError)
    np.testing.assert_allclose([result[0][0][1] for result in results[1:]], [100 / 255, 50 / 255], atol=1e-6)
    assert engine.batches == [1, 1, 1]
