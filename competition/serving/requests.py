"""Requests and answers in the form of TensorFlow Serving's REST API: checked, with errors that say what was expected.

Besides its JSON, image files are accepted as they are: `curl -F file=@photo.jpg` and `curl --data-binary @photo.jpg`.

https://www.tensorflow.org/tfx/serving/api_rest: POST /v1/models/NAME:predict with {"instances": [{"b64": "..."}]}.
"""

import base64
import binascii
import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from competition.serving.bundle import Bundle
from competition.serving.limits import Limits

MODEL, VERSION, SIGNATURE = "goldfold", "1", "serving_default"
EXPECTED = 'expected {"instances": [{"b64": "..."}]} as JSON, a form with image files, or one image as the body'
DIGITS = 8  # decimals of a probability in an answer


class BadRequest(ValueError):
    """The request cannot be answered. The message says what was found and what was expected."""


async def images_of(headers: Headers, body: bytes, limits: Limits) -> list[bytes]:
    """The encoded images of a predict request: JSON, a form with files, or one image as the body. Raises BadRequest."""
    if headers.get("content-type", "").startswith("multipart/form-data"):
        return await _images_of_form(headers, body, limits)
    if body and body.lstrip()[:1] not in (b"{", b"["):
        return [body]
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest(f"the body is not JSON; {EXPECTED}") from None
    if not isinstance(request, dict) or not isinstance(request.get("instances"), list):
        raise BadRequest('expected {"instances": [{"b64": "..."}]}, a list of images in base64')
    if request.get("signature_name") not in (None, "", SIGNATURE):
        raise BadRequest(f"signature_name: expected {SIGNATURE} or nothing")
    instances = request["instances"]
    if not 0 < len(instances) <= limits.instances:
        raise BadRequest(f"{len(instances):,} instances were sent; expected 1 to {limits.instances}")
    return [_image(number, instance) for number, instance in enumerate(instances)]


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
        raise BadRequest(f"the form cannot be read: {getattr(error, 'message', 'no boundary')}; {EXPECTED}") from None
    if not images:
        raise BadRequest(f"the form holds no file; {EXPECTED}")
    return images


def _image(number: int, instance: Any) -> bytes:
    if isinstance(instance, dict) and isinstance(instance.get("image_bytes"), dict):
        instance = instance["image_bytes"]  # the input by name, which TensorFlow Serving accepts as well
    text = instance.get("b64") if isinstance(instance, dict) else None
    if not isinstance(text, str):
        raise BadRequest(f'instance {number}: expected {{"b64": "..."}}, an image in base64')
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"instance {number}: b64 is not base64") from None


def prediction(bundle: Bundle, probs: np.ndarray, number: int) -> dict[str, Any]:
    """One entry of "predictions".  probs: (C,) float32.  number: of the predicted class."""
    rounded = [round(value, DIGITS) for value in probs.tolist()]
    return {"class_id": number, "class_name": bundle.classes[number], "probabilities": rounded}


def status() -> dict[str, Any]:
    """The answer to GET /v1/models/NAME."""
    state = {"version": VERSION, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    return {"model_version_status": [state]}


def metadata(bundle: Bundle, engine: str) -> dict[str, Any]:
    """The answer to GET /v1/models/NAME/metadata; "goldfold" holds what TensorFlow Serving has no place for."""

    def tensor(dtype: str, *sides: int) -> dict[str, Any]:
        return {"dtype": dtype, "tensor_shape": {"dim": [{"size": str(side), "name": ""} for side in sides]}}

    signature = {
        "inputs": {"image_bytes": tensor("DT_STRING", -1)},
        "outputs": {
            "class_id": tensor("DT_INT64", -1),
            "class_name": tensor("DT_STRING", -1),
            "probabilities": tensor("DT_FLOAT", -1, len(bundle.classes)),
        },
        "method_name": "tensorflow/serving/predict",
    }
    facts = {
        "title": bundle.title,
        "competition": bundle.competition,
        "engine": engine,
        "digest": bundle.digest,
        "data": bundle.data,
        "classes": list(bundle.classes),
        "sizes": list(bundle.sizes),
    }
    return {
        "model_spec": {"name": MODEL, "signature_name": "", "version": VERSION},
        "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
        "goldfold": facts,
    }
