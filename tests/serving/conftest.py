"""Servers in processes of their own on loopback, and the images to send to them."""

import importlib.util
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from servers import SMALL, Server, start
from stages import Workspace

from competition.images.decoded_cache import cached_images
from competition.prepare.decoding import encode_png
from competition.prepare.prepared import load_prepared


@pytest.fixture(scope="session")
def small_server(exported: Workspace) -> Iterator[Server]:
    """A server with the ONNX engine and small limits."""
    packages = ("onnxruntime", "tf2onnx", "starlette", "uvicorn", "prometheus_client")
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"goldfold[serve] and goldfold[onnx] are not installed: {', '.join(missing)}")
    server = start([sys.executable, "-c", SMALL, str(exported.work), "onnx"], "port ")
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="session")
def rows(exported: Workspace) -> list[tuple[str, bytes]]:
    """(id, image) of every test row: its decoded pixels as a PNG, read without TensorFlow."""
    prepared = load_prepared(exported.work / "data")
    ids = prepared.part("test")["id"].to_numpy(str)
    pixels = cached_images(exported.work / "cache", prepared.digest, ids, 16, "squash")
    assert pixels is not None
    return list(zip(ids.tolist(), map(encode_png, pixels[np.arange(len(ids))]), strict=True))
