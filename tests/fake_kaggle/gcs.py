"""A fake Google Cloud Storage server on loopback, for TensorFlow's gs:// file system, whose endpoint is fixed.

libcurl inside TensorFlow honours https_proxy and CURL_CA_BUNDLE. A CONNECT proxy with its own certificate therefore
responds in place of www.googleapis.com and storage.googleapis.com. `environment()` returns the variables.
"""

import json
import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from fake_kaggle.answering import Answering, Loopback

HOSTS = ("www.googleapis.com", "storage.googleapis.com", "oauth2.googleapis.com")


class FakeGcs(Loopback):
    """Buckets in memory: `buckets` maps bucket -> object -> bytes."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl, which makes the certificate of the fake Google Cloud Storage, is not installed")
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.denied: set[str] = set()  # buckets that answer 403
        self.calls: list[str] = []
        self.sessions: dict[str, tuple[str, str, bytes]] = {}  # resumable uploads
        self.certificate = folder / "gcs.pem"
        names = ",".join(f"DNS:{host}" for host in HOSTS)
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=stand-in"]
        files = ["-keyout", str(folder / "gcs.key"), "-out", str(self.certificate)]
        subprocess.run([*command, *files, "-addext", f"subjectAltName={names}"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, folder / "gcs.key")
        super().__init__(Proxy, gcs=self, context=context)

    def environment(self) -> dict[str, str]:
        return {
            "https_proxy": self.address,
            "CURL_CA_BUNDLE": str(self.certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "stand-in",
            "NO_GCE_CHECK": "true",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "1",
        }


class Proxy(Answering):
    gcs: FakeGcs
    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            with self.context.wrap_socket(self.connection, server_side=True) as secure:
                type("Bound", (Storage,), {"gcs": self.gcs})(secure, self.client_address, self.server)
        except (OSError, ValueError):
            pass
        self.close_connection = True


class Storage(Answering):
    """The part of the JSON API that TensorFlow uses."""

    gcs: FakeGcs

    def do_GET(self) -> None:
        path, query = self._parsed_request()
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)", path):
            self._bucket(match.group(1)) is not None and self._json({"name": match.group(1), "location": "US"})
        elif match := re.fullmatch(r"/storage/v1/b/([^/]+)/o", path):
            self._list(match.group(1), query)
        elif match := re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)", path):
            data = self._object(match.group(1), unquote(match.group(2)))
            if data is not None:
                self._json(self._metadata(unquote(match.group(2)), data))
        elif match := re.fullmatch(r"/([^/]+)/(.+)", path):
            self._read(match.group(1), unquote(match.group(2)))

    def do_POST(self) -> None:
        path, query = self._parsed_request()
        self._body()
        if match := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            if self._bucket(match.group(1)) is None:
                return
            key = f"s{len(self.gcs.sessions)}"
            self.gcs.sessions[key] = (match.group(1), query["name"][0], b"")
            self._send(200, b"", {"Location": f"https://www.googleapis.com/upload/session/{key}"})

    def do_PUT(self) -> None:
        path, _ = self._parsed_request()
        key = path.rsplit("/", 1)[-1]
        bucket, name, received = self.gcs.sessions[key]
        data = received + self._body()
        self.gcs.sessions[key] = (bucket, name, data)
        self.gcs.buckets[bucket][name] = data
        self._json(self._metadata(name, data))

    def do_DELETE(self) -> None:
        path, _ = self._parsed_request()
        match = re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)", path)
        if match and self._object(match.group(1), unquote(match.group(2))) is not None:
            del self.gcs.buckets[match.group(1)][unquote(match.group(2))]
            self._send(204, b"")

    def _parsed_request(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        self.gcs.calls.append(f"{self.command} {parts.path}")
        return parts.path, parse_qs(parts.query)

    def _bucket(self, name: str) -> dict[str, bytes] | None:
        if name in self.gcs.denied:
            account = "stand-in@example.iam.gserviceaccount.com"
            self._error(403, f"{account} does not have storage.objects.list access to the bucket.")
        elif name not in self.gcs.buckets:
            self._error(404, "The specified bucket does not exist.")
        else:
            return self.gcs.buckets[name]
        return None

    def _object(self, bucket: str, name: str) -> bytes | None:
        objects = self._bucket(bucket)
        if objects is not None and name not in objects:
            self._error(404, "No such object")
        return objects.get(name) if objects is not None else None

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        if (objects := self._bucket(bucket)) is None:
            return
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", ["\0"])[0]
        items, prefixes = [], set()
        for name in sorted(name for name in objects if name.startswith(prefix)):
            folder, found, _ = name[len(prefix) :].partition(delimiter)
            if found:
                prefixes.add(prefix + folder + delimiter)
            else:
                items.append(self._metadata(name, objects[name]))
        self._json({"items": items, "prefixes": sorted(prefixes)})

    def _read(self, bucket: str, name: str) -> None:
        if (data := self._object(bucket, name)) is None:
            return
        if not (match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))):
            self._send(200, data)
        elif (start := int(match[1])) >= len(data):
            self._send(416, b"")
        else:
            part = data[start : int(match[2]) + 1]
            self._send(206, part, {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(data)}"})

    def _metadata(self, name: str, data: bytes) -> dict[str, Any]:
        return {"name": name, "size": str(len(data)), "generation": "1", "updated": "2026-01-01T00:00:00.000Z"}

    def _error(self, status: int, message: str) -> None:
        self._json({"error": {"code": status, "message": message}}, status)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})
