"""Servers in processes of their own on loopback, and the images to send to them."""

import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from builders import ROOT
from stages import Workspace

from competition.files.image_codec import encode
from competition.input_pipeline.decoded_cache import cached_images
from competition.prepare.prepared import load_prepared

# `goldfold` with limits small enough to be reached in a test.
SMALL = """
from functools import partial
from competition.serving import requests
from pipelines.terminal.cli import main

limits = dict(body_bytes=4_000_000, body_seconds=1.0, instances=64, waiting=64)
requests.Limits = partial(requests.Limits, **limits)
main()
"""


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}

    def post(self, path: str, value: Any) -> tuple[int, Any]:
        status, body, _ = self.request("POST", path, json.dumps(value))
        return status, json.loads(body)


def start(command: list[str], **options: Any) -> Server:
    """Start a server by a command whose output says its address when it answers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment, **options)
    assert process.stdout is not None
    address = next(line for line in process.stdout if "http://" in line)
    return Server(process, int(address.split("127.0.0.1:")[1].split("/")[0]))


@pytest.fixture(scope="session")
def small_server(exported: Workspace) -> Iterator[Server]:
    """A server with the ONNX engine and small limits."""
    for package in ("onnxruntime", "tf2onnx", "starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"goldfold[serve] and goldfold[onnx] are not installed: {package}")
    arguments = exported.command("serve", "--address", "127.0.0.1:0", "--engine", "onnx")[3:]
    server = start([sys.executable, "-c", SMALL, *arguments])
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
    return list(zip(ids.tolist(), (encode(image, "png") for image in pixels[np.arange(len(ids))]), strict=True))
