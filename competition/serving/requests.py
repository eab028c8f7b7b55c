"""Requests in the form of TensorFlow Serving's REST API: checked, with errors that say what was expected.

Besides its JSON, an image file is accepted as it is: `curl --data-binary @photo.jpg`.

https://www.tensorflow.org/tfx/serving/api_rest: POST /v1/models/NAME:predict with {"instances": [{"b64": "..."}]}.
"""

import base64
import binascii
import json
from dataclasses import dataclass

from starlette.exceptions import HTTPException

MODEL = "goldfold"
EXPECTED = 'expected {"instances": [{"b64": "..."}]} as JSON, or one image as the body'


@dataclass(frozen=True)
class Limits:
    """What one client may ask of the server. Beyond a limit it gets an error with the limit in it; the server goes on."""

    body_bytes: int = 32_000_000  # of one request
    body_seconds: float = 20.0  # until it is complete
    image_pixels: int = 50_000_000  # of one image; checked in the header, before its pixels are decoded
    instances: int = 128  # images of one request
    waiting: int = 512  # images that wait for the model; beyond, a request gets 503
    batch: int = 32  # images predicted at once
    connections: int = 800  # open at once; beyond, a request gets 503. Most systems allow a process 1,024 open files
    stop_seconds: float = 10.0  # that running requests get after SIGTERM


def images_of(body: bytes, limits: Limits) -> list[bytes]:
    """The encoded images of a predict request: JSON, or one image as the body. Raises HTTPException."""
    if body and body.lstrip()[:1] not in (b"{", b"["):
        return [body]
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, f"the body is not JSON; {EXPECTED}") from None
    instances = request.get("instances") if isinstance(request, dict) else None
    if not isinstance(instances, list):
        raise HTTPException(400, EXPECTED)
    if not 0 < len(instances) <= limits.instances:
        raise HTTPException(400, f"{len(instances):,} instances were sent; expected 1 to {limits.instances}")
    images = []
    for number, instance in enumerate(instances):
        content = instance.get("b64") if isinstance(instance, dict) else None
        if not isinstance(content, str):
            raise HTTPException(400, f'instance {number}: expected {{"b64": "..."}}, an image in base64')
        try:
            images.append(base64.b64decode(content, validate=True))
        except (binascii.Error, ValueError):
            raise HTTPException(400, f"instance {number}: b64 is not base64") from None
    return images
