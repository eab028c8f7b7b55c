"""Servers in processes of their own on loopback."""

import http.client
import json
import os
import signal
import socket
import subprocess
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from builders import ROOT

# Limits small enough to be reached in a test.
SMALL = """
import sys
from pathlib import Path
from competition.workspace.dependencies import export_path
from competition.prepare.prepared import load_prepared
from competition.serving.app import create_app
from competition.serving.engines import open_engine
from competition.serving.requests import Limits
from competition.serving.server import listen, run_server
from competition.serving.similar import cached_training_images

work, engine = Path(sys.argv[1]), sys.argv[2]
limits = Limits(body_bytes=4_000_000, header_seconds=1.0, body_seconds=1.0, instances=64, waiting=64, connections=1_200)
folder = export_path(work, "blend").parent
engine = open_engine(engine, folder)
training = lambda: cached_training_images(load_prepared(work / "data"), [], engine, work / "cache")
listener = listen("127.0.0.1:0")
app = create_app(engine, limits, training, True, (folder / "README.md").read_text())
run_server(app, listener, limits, lambda: print("port", listener.getsockname()[1], flush=True))
"""


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    port: int

    def connect(self, timeout: float = 30.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

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

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def start(command: list[str], port_after: str, **options: Any) -> Server:
    """Start a server, which says its port when it answers.  port_after: the text before the port in a line of its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment, **options)
    assert process.stdout is not None
    line = next(line for line in process.stdout if port_after in line)
    return Server(process, int(line.split(port_after)[1].split("/")[0].split()[0]))
