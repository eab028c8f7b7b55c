"""Requests and answers in the form of TensorFlow Serving's REST API: checked, with errors that say what was expected.

Besides its JSON, image files are accepted as they are: `curl -F file=@photo.jpg` and `curl --data-binary @photo.jpg`.

https://www.tensorflow.org/tfx/serving/api_rest: POST /v1/models/NAME:predict with {"instances": [{"b64": "..."}]}.
"""

import base64
import binascii
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

MODEL, SIGNATURE = "goldfold", "serving_default"
# The answer to GET /v1/models/NAME.
STATUS = {
    "model_version_status": [
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
}
EXPECTED = 'expected {"instances": [{"b64": "..."}]} as JSON, a form with image files, or one image as the body'


@dataclass(frozen=True)
class Limits:
    """What one client may ask of the server. Beyond a limit it gets an error with the limit in it; the server goes on."""

    body_bytes: int = 32_000_000  # of one request
    image_bytes: int = 16_000_000  # of one encoded image
    image_pixels: int = 50_000_000  # of one image; checked in the header, before its pixels are decoded
    instances: int = 128  # images of one request
    waiting: int = 512  # images that wait for the model; beyond, a request gets 503
    batch: int = 32  # images predicted at once
    header_seconds: float = 10.0  # until the header of a request is complete
    body_seconds: float = 20.0  # until its body is complete
    request_seconds: float = 60.0  # until its answer is sent
    stop_seconds: float = 10.0  # that running requests get after SIGTERM
    connections: int = 1_500  # open at once; later ones are closed at once


async def images_of(headers: Headers, body: bytes, limits: Limits) -> list[bytes]:
    """The encoded images of a predict request: JSON, a form with files, or one image as the body. Raises HTTPException."""
    if headers.get("content-type", "").startswith("multipart/form-data"):
        return await _images_of_form(headers, body, limits)
    if body and body.lstrip()[:1] not in (b"{", b"["):
        return [body]
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, f"the body is not JSON; {EXPECTED}") from None
    if not isinstance(request, dict) or not isinstance(request.get("instances"), list):
        raise HTTPException(400, 'expected {"instances": [{"b64": "..."}]}, a list of images in base64')
    if request.get("signature_name") not in (None, "", SIGNATURE):
        raise HTTPException(400, f"signature_name: expected {SIGNATURE} or nothing")
    instances = request["instances"]
    if not 0 < len(instances) <= limits.instances:
        raise HTTPException(400, f"{len(instances):,} instances were sent; expected 1 to {limits.instances}")
    images = []
    for number, instance in enumerate(instances):
        if isinstance(instance, dict) and isinstance(instance.get("image_bytes"), dict):
            instance = instance["image_bytes"]  # the input by name, which TensorFlow Serving accepts as well
        content = instance.get("b64") if isinstance(instance, dict) else None
        if not isinstance(content, str):
            raise HTTPException(400, f'instance {number}: expected {{"b64": "..."}}, an image in base64')
        try:
            images.append(base64.b64decode(content, validate=True))
        except (binascii.Error, ValueError):
            raise HTTPException(400, f"instance {number}: b64 is not base64") from None
    return images


async def _images_of_form(headers: Headers, body: bytes, limits: Limits) -> list[bytes]:
    """The files of a form, in its order."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(headers, stream(), max_files=limits.instances, max_fields=limits.instances)
    parser.spool_max_size = limits.body_bytes  # nothing is written to disk
    try:
        form = await parser.parse()
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        images = [await file.read() for file in files]
    except (MultiPartException, KeyError) as error:  # KeyError: the content type names no boundary
        raise HTTPException(
            400, f"the form cannot be read: {getattr(error, 'message', 'no boundary')}; {EXPECTED}"
        ) from None
    if not images:
        raise HTTPException(400, f"the form holds no file; {EXPECTED}")
    return images
