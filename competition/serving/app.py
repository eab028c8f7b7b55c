"""The web application: the predict request of TensorFlow Serving, health, and a page to try the model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from mimetypes import guess_type
from pathlib import Path

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from competition.files.image_codec import BadImage
from competition.serving.batching import Batcher
from competition.serving.engines import Engine
from competition.serving.requests import MODEL, Limits, images_of
from competition.serving.similar import TrainingImages

PAGE = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css", "/page.svg": "page.svg"}
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]", "[")  # Starlette cuts a host at its first colon
DIGITS = 8  # decimals of a probability in an answer
TOP, NEIGHBOURS = 5, 6  # classes and training images on the page
# Times limits.body_bytes: so much is read of a body that is too large, because a reset would hide the answer.
DISCARDED = 2


def create_app(
    engine: Engine,
    limits: Limits,
    training_images: Callable[[], TrainingImages | None],
    loopback_only: bool,
    card: str,
    announce: Callable[[], None],
) -> ASGIApp:
    """The application around one engine.

    training_images: called once in a thread after the start; None = the page shows no similar images.
    card: the model card, Markdown.
    announce: called when the server starts and Ctrl-C stops it: an earlier signal may interrupt, and be swallowed by, anything.
    loopback_only: answer only requests whose Host is this machine, so that no web page can read from it (DNS rebinding).
    """
    server = _Server(engine, limits, training_images, announce)
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK_NAMES))] if loopback_only else []
    here = Path(__file__).parent
    constant = {
        f"/v1/models/{MODEL}/metadata": JSONResponse({MODEL: {**asdict(engine.bundle), "engine": engine.name}}),
        "/card": Response(card, media_type="text/markdown"),
        **{path: Response((here / file).read_bytes(), media_type=guess_type(file)[0]) for path, file in PAGE.items()},
    }
    routes = [
        Route(f"/v1/models/{MODEL}:predict", server.predict, methods=["POST"]),
        Route("/photo", server.photo, methods=["POST"]),
        Route("/training/{row:int}.png", server.picture),
        Route("/healthz", server.health),
        *(Route(path, answer, methods=["GET"]) for path, answer in constant.items()),  # a response is an application
    ]
    handlers = dict.fromkeys((HTTPException, BadImage), server.answer_error)
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=server.lifespan)


@dataclass(eq=False)
class _Server:
    """The routes. Errors are {"error": "..."} with a status of 400 and above."""

    _engine: Engine
    _limits: Limits
    _find_training_images: Callable[[], TrainingImages | None]
    _announce: Callable[[], None]
    _batcher: Batcher = field(init=False)  # from the start of the server on
    _training_images: TrainingImages | None = None

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._batcher = Batcher(self._engine, self._limits)

        async def load_training_images() -> None:
            self._training_images = images = await asyncio.to_thread(self._find_training_images)
            while images is not None and await self._batcher.when_idle(images.add_features):
                pass

        loading = asyncio.create_task(load_training_images())
        self._announce()
        yield
        loading.cancel()
        await self._batcher.stop()

    async def predict(self, request: Request) -> Response:
        images = images_of(await _body(request, self._limits), self._limits)
        predictions = [
            {
                "class_id": number,
                "class_name": self._engine.bundle.classes[number],
                "probabilities": [round(value, DIGITS) for value in probs.tolist()],
            }
            for probs, number in await self._batcher.predict(images)
        ]
        return JSONResponse({"predictions": predictions})

    async def photo(self, request: Request) -> Response:
        """The page's request: one image as the body. The content type keeps forms of other sites from sending it."""
        if request.headers.get("content-type") != "application/octet-stream":
            raise HTTPException(415, "expected one image as application/octet-stream")
        data = await _body(request, self._limits)
        ((probs, number),) = await self._batcher.predict([data])
        neighbours: dict[str, object] = {"similar": [], "compared": 0}
        if self._training_images is not None:
            search = partial(self._training_images.most_similar, data, NEIGHBOURS)
            neighbours["similar"] = await self._batcher.when_idle(search)
            neighbours["compared"] = len(self._training_images.compared)
        classes = self._engine.bundle.classes
        best = np.argsort(-probs, kind="stable")[:TOP]
        top = [{"class_name": classes[n], "probability": round(float(probs[n]), 4)} for n in best]
        return JSONResponse({"class_name": classes[number], "top": top, **neighbours})

    async def picture(self, request: Request) -> Response:
        data = None
        if self._training_images is not None:
            data = await asyncio.to_thread(self._training_images.picture, request.path_params["row"])
        if data is None:
            return JSONResponse({"error": "no such training image"}, 404)
        return Response(data, media_type="image/png")

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "engine": self._engine.name, "waiting": self._batcher.waiting})

    async def answer_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _body(request: Request, limits: Limits) -> bytes:
    """The body, at most limits.body_bytes within limits.body_seconds."""
    close = {"connection": "close"}  # the rest of the body is not read
    chunks: list[bytes] = []
    received = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                received += len(chunk)
                if received <= limits.body_bytes:
                    chunks.append(chunk)
                elif received > DISCARDED * limits.body_bytes:
                    break
    except TimeoutError:
        raise HTTPException(408, f"the body was not complete after {limits.body_seconds:g} s", close) from None
    except ClientDisconnect:
        raise HTTPException(400, "the client has gone", close) from None
    if received > limits.body_bytes:
        message = f"the body has more than {limits.body_bytes:,} bytes; send fewer or smaller images"
        raise HTTPException(413, message, close)
    return b"".join(chunks)
