"""What the fake servers share: a thread that serves a free port of loopback, request bodies, and responses with their length."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Loopback:
    """Use as a context manager."""

    def __init__(self, handler: type["Answering"], **attributes: Any) -> None:
        """attributes: of the handler."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), attributes))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are written one after the other; without it each response waits 40 ms.
    disable_nagle_algorithm = True

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):  # although a Content-Length may be sent as well
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing; tests inspect `calls`."""
