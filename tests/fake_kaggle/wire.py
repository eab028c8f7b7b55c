"""HTTP handler of the fake Kaggle server: requests, responses and injected faults."""

import base64
import contextlib
import hashlib
import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fake_kaggle.answering import Answering
from fake_kaggle.parts import LOGIN_PAGE, Http, Redirect

if TYPE_CHECKING:
    from fake_kaggle.server import FakeKaggle


class Handler(Answering):
    kaggle: "FakeKaggle"

    def do_POST(self) -> None:
        method = urlsplit(self.path).path.rsplit("/", 1)[-1]
        request = json.loads(self._body() or b"{}")
        self.kaggle.calls.append((method, request))
        self.kaggle.headers.append((method, dict(self.headers)))
        try:
            fault = self.kaggle.fault(method)
            if self._inject_fault(fault):
                return
            self._authorize(method)
            response = getattr(self.kaggle, re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower())(request)
            if fault == "lost":  # processed, but the response is lost
                self._drop()
            elif fault == "after:hold":  # processed, but the response is delayed
                self.kaggle.held.set()
                self.kaggle.released.wait(600)
                self._drop()
            elif fault == "after:redirect":  # processed, and sent back to itself
                self._send(307, b"", {"Location": "http://localhost" + urlsplit(self.path).path})
            elif fault.startswith("after:"):  # processed, but a gateway responds with an error
                self._json(int(fault[6:]), {"code": int(fault[6:]), "message": "Gateway timeout"})
            elif isinstance(response, Redirect):
                self._send(302, b"", {"Location": response.url})
            else:
                self._json(200, response)
        except Http as error:
            self._json(error.status, {"code": error.status, "message": str(error)}, error.headers)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        kind, *rest = parts.path.strip("/").split("/")
        self.kaggle.headers.append((f"GET {kind}", dict(self.headers)))
        if kind == "archives":
            self.kaggle.calls.append(("archive", dict(self.headers)))
            self._send_stored("archive", self.kaggle.contests[rest[0]].archive)
        elif kind == "files":  # one file of a competition
            name = unquote("/".join(rest[1:]))
            self.kaggle.calls.append(("file", {"name": name, **self.headers}))
            self._send_stored("file", self.kaggle.contests[rest[0]].sent(name), md5=True)
        elif kind == "outputs":
            if not self._inject_fault(self.kaggle.fault("output")):
                self._send(200, (self.kaggle.folder / rest[0] / "working" / "/".join(rest[1:])).read_bytes())
        elif "logs/stream" in parts.path:
            self._log("/".join(parts.path.split("/")[-2:]))
        elif kind == "account":
            self._send(200, LOGIN_PAGE, {"Content-Type": "text/html"})
        else:
            self._json(404, {"code": 404, "message": "Not found"})

    def do_PUT(self) -> None:
        token = urlsplit(self.path).path.rsplit("/", 1)[-1]
        data = self._body()
        self.kaggle.calls.append(("upload", dict(self.headers)))
        self.kaggle.headers.append(("PUT", dict(self.headers)))
        if not self._inject_fault(self.kaggle.fault("upload")):
            self.kaggle.uploads[token]["data"] = data
            self._send(200, b"")

    def _authorize(self, method: str) -> None:
        authorization = self.headers.get("Authorization", "")
        basic = base64.b64encode(f"{self.kaggle.username}:{self.kaggle.key}".encode()).decode()
        if method != "IntrospectToken" and authorization not in {f"Basic {basic}", f"Bearer {self.kaggle.token}"}:
            raise Http(401, "Unauthenticated")

    def _inject_fault(self, fault: str) -> bool:
        """Inject a fault that any response may have; return True if a response was sent."""
        kind, _, value = fault.partition(":")
        if kind == "429":
            headers = {"Retry-After": value} if value else {}
            body = {"error": {"code": 429, "message": "Too many requests", "status": "RESOURCE_EXHAUSTED"}}
            self._json(429, body, headers)
        elif kind in {"400", "401", "403", "404", "500", "503"}:
            self._json(int(kind), {"code": int(kind), "message": value or f"error {kind}"})
        elif kind == "drop":
            self._drop()
        elif kind == "stall":
            self.kaggle.released.wait(60)
            self._drop()
        elif kind == "login":
            self._send(302, b"", {"Location": "http://localhost/account/login"})
        elif kind == "html":
            self._send(200, LOGIN_PAGE, {"Content-Type": "text/html"})
        elif kind == "expired":
            xml = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code></Error>"
            self._send(403, xml, {"Content-Type": "application/xml"})
        else:
            return False
        return True

    def _send_stored(self, fault_method: str, data: bytes, md5: bool = False) -> None:
        """Send an object of the storage or the requested range of it. fault_method: key of `faults`."""
        self.kaggle.served = 0.0
        fault, etag = self.kaggle.fault(fault_method), self.kaggle.etag or f'"{hashlib.md5(data).hexdigest()}"'
        if self._inject_fault(fault):
            return
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match and self.headers.get("If-Range", etag) == etag else 0
        body = data[start:]
        kind, _, value = fault.partition(":")
        if kind == "flip":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :]
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        if md5 and not self.kaggle.etag and not start:  # some storages send it with the whole object only
            headers["x-goog-hash"] = f"crc32c=AAAAAA==, md5={base64.b64encode(hashlib.md5(data).digest()).decode()}"
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        headers |= {"Connection": "close"} if kind == "nolength" else {"Content-Length": str(len(body))}
        self.send_response(206 if start else 200)
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        if kind in {"cut", "nolength"}:
            body = body[: len(body) // 2]
        try:
            step = max(1, len(body) // 40) if kind in {"slow", "hang"} else len(body) or 1
            for offset in range(0, len(body), step):
                self.wfile.write(body[offset : offset + step])
                self.kaggle.served = min(1.0, (offset + step) / len(body))
                if kind == "slow":
                    time.sleep(float(value or 0.05))
                if kind == "hang" and offset >= len(body) // 2:
                    self.kaggle.released.wait(60)
                    break
        except (BrokenPipeError, ConnectionResetError):
            pass
        if kind in {"cut", "nolength", "hang"}:
            self._drop()

    def _log(self, name: str) -> None:
        runs = self.kaggle.kernels.get(name)
        if not runs:
            self._json(403, {"code": 403, "message": "Permission 'kernels.get' was denied"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        run, sent_lines = runs[-1], 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the reader has disconnected
            while run.status in {"QUEUED", "RUNNING"} or sent_lines < len(run.log):
                for line in run.log[sent_lines:]:
                    self.wfile.write(f"data: {json.dumps({'stream_name': 'stdout', 'data': line})}\n\n".encode())
                    sent_lines += 1
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(b"data: END_OF_LOG\n\n")
        self._drop()

    def _json(self, status: int, value: Any, headers: Mapping[str, str] = {}) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})

    def _drop(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)
