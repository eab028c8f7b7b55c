"""A stand-in for Kaggle on loopback, for the unmodified `kaggle` package.

The client is pointed here by its own means: KAGGLE_API_ENVIRONMENT=LOCALHOST makes it ask http://localhost, and
HTTP_PROXY brings every request, storage links included, to this server's port. `environment()` gives both.

Faults are queued per method: `kaggle.faults["DownloadDataFiles"] = ["429:1", "500"]` fails the first two calls.
`kaggle.calls` lists what was asked.
"""

import base64
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STORAGE = "http://storage.test"
SIGNATURE = "X-Goog-Signature=planted5ignature0f0link"  # must never be seen anywhere
LOGIN_PAGE = b"<!DOCTYPE html><html><title>Kaggle: Log in</title></html>"


@dataclass
class Contest:
    files: dict[str, bytes]
    title: str = "Flowers"
    entered: bool = True
    daily: int = 5
    kernels_only: bool = False
    closed: bool = False
    listed: dict[str, int] | None = None  # another listing than the true one
    archive: bytes = b""
    # bytes of a csv -> (status, public, private, error)
    score: Callable[[bytes], tuple[str, str, str, str]] = lambda data: ("COMPLETE", "0.9", "", "")

    def __post_init__(self) -> None:
        self.archive = self.archive or zip_of(self.files)


@dataclass
class Run:
    """One version of a kernel."""

    request: dict[str, Any]
    folder: Path
    status: str = "QUEUED"
    failure: str = ""
    log: list[str] = field(default_factory=list)
    polls: int = 0


def zip_of(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in files.items():
            zipped.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


class FakeKaggle:
    """A whole Kaggle: competitions, submissions, kernels that really run, datasets, quota. Use as a context manager."""

    def __init__(
        self, folder: Path, username: str = "ada", key: str = "planted-key-1", token: str = "KGAT_planted-token-2"
    ):
        self.folder, self.username, self.key, self.token = folder, username, key, token
        self.contests: dict[str, Contest] = {}
        self.submissions: list[dict[str, Any]] = []
        self.kernels: dict[str, list[Run]] = defaultdict(list)
        self.datasets: dict[str, dict[str, bytes]] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[tuple[str, dict[str, str]]] = []
        self.pending_polls = 1  # a submission is PENDING for so many questions
        self.dataset_polls = 0  # a dataset is not ready for so many questions
        self.hidden_modules: tuple[str, ...] = ()  # packages that a kernel does not find
        self.kernel_environment: dict[str, str] = {}
        self.quota = {"gpuQuota": (0, 108000), "tpuQuota": (3600, 72000)}  # seconds used, allowed
        self.served = 0.0  # share of the last archive asked for that was sent
        self.released = threading.Event()  # ends every stalled answer
        self._count = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"kaggle": self}))
        self._server.daemon_threads = True

    def __enter__(self) -> "FakeKaggle":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """What a process needs to take this server for Kaggle, with the legacy key; `home` is an empty folder."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "HTTP_PROXY": f"http://127.0.0.1:{self._server.server_port}",
            "NO_PROXY": "",
            "KAGGLE_USERNAME": self.username,
            "KAGGLE_KEY": self.key,
            **more,
        }

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def fault(self, method: str) -> str:
        return self.faults[method].pop(0) if self.faults[method] else ""

    # the services: each takes the request's JSON and returns the answer's

    def introspect_token(self, ask: dict[str, Any]) -> dict[str, Any]:
        return {"active": ask["token"] == self.token, "username": self.username} if ask["token"] == self.token else {}

    def list_competitions(self, ask: dict[str, Any]) -> dict[str, Any]:
        return {"competitions": [self._about(slug) for slug in self.contests if ask.get("search", "") in slug]}

    def get_competition(self, ask: dict[str, Any]) -> dict[str, Any]:
        self._contest(ask)
        return self._about(ask["competitionName"])

    def list_data_files(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Two files a page, and an empty page with a token in between."""
        contest = self._contest(ask)
        listed = contest.listed if contest.listed is not None else {n: len(d) for n, d in contest.files.items()}
        place = int(ask.get("pageToken") or 0)
        if place == 1:
            return {"files": [], "nextPageToken": "2"}
        names = list(listed)[max(0, place - 1) : place + 1] if place else list(listed)[:1]
        after = 1 if place == 0 else place + 2
        token = {"nextPageToken": str(after)} if after - 1 < len(listed) and len(listed) > 1 else {}
        return {"files": [{"name": name, "totalBytes": listed[name]} for name in names], **token}

    def download_data_files(self, ask: dict[str, Any]) -> "Redirect":
        contest, slug = self._contest(ask), ask["competitionName"]
        if not contest.entered:
            raise Http(403, "You must accept this competition's rules before you'll be able to download files.")
        return Redirect(f"{STORAGE}/archives/{slug}/archive.zip?{SIGNATURE}&X-Goog-Expires=60")

    def start_submission_upload(self, ask: dict[str, Any]) -> dict[str, Any]:
        contest = self._contest(ask)
        if not contest.entered:
            raise Http(403, "You must accept this competition's rules before you can submit.")
        return self._upload({"name": ask["fileName"]})

    def start_blob_upload(self, ask: dict[str, Any]) -> dict[str, Any]:
        return self._upload({"name": ask["name"]})

    def create_submission(self, ask: dict[str, Any]) -> dict[str, Any]:
        contest = self._contest(ask)
        if contest.kernels_only:
            raise Http(400, "Submission not allowed: This competition only accepts Submissions from Notebooks.")
        upload = self.uploads[ask["blobFileTokens"]]
        today = sum(made["slug"] == ask["competitionName"] for made in self.submissions)
        if today >= contest.daily:
            raise Http(
                400, f"Submission not allowed: Your team has used its daily Submission allowance ({contest.daily})."
            )
        return self._submitted(ask, upload["data"], upload["name"])

    def create_code_submission(self, ask: dict[str, Any]) -> dict[str, Any]:
        runs = self.kernels[f"{ask['kernelOwner']}/{ask['kernelSlug']}"]
        file = runs[int(ask["kernelVersion"]) - 1].folder / "working" / ask["fileName"]
        return self._submitted(ask, file.read_bytes(), ask["fileName"])

    def get_submission(self, ask: dict[str, Any]) -> dict[str, Any]:
        for made in self.submissions:
            if made["ref"] == ask["ref"]:
                made["polls"] += 1
                return self._shown(made)
        raise Http(404, "Not found")

    def list_submissions(self, ask: dict[str, Any]) -> dict[str, Any]:
        mine = [made for made in self.submissions if made["slug"] == ask["competitionName"]]
        return {"submissions": [self._shown(made) for made in reversed(mine)]}

    def get_submission_limits(self, ask: dict[str, Any]) -> dict[str, Any]:
        contest = self._contest(ask)
        made = sum(made["slug"] == ask["competitionName"] for made in self.submissions)
        return {"numToday": made, "numTotal": made, "numAllowedNow": max(0, contest.daily - made)}

    def save_kernel(self, ask: dict[str, Any]) -> dict[str, Any]:
        owner, _ = ask["slug"].split("/")
        slug = re.sub(r"[^a-z0-9]+", "-", ask["newTitle"].lower()).strip("-")  # from the title, whatever the id says
        answer: dict[str, Any] = {}
        for kind, known in (("competition", self.contests), ("dataset", self.datasets)):
            if dropped := [name for name in ask.get(f"{kind}DataSources", []) if name not in known]:
                answer[f"invalid{kind.title()}Sources"] = dropped
        runs = self.kernels[f"{owner}/{slug}"]
        run = Run(ask, self.folder / f"{owner}_{slug}_v{len(runs) + 1}")
        runs.append(run)
        threading.Thread(target=self._run_kernel, args=(run,), daemon=True).start()
        url = f"https://www.kaggle.com/code/{owner}/{slug}"
        return {"ref": f"/code/{owner}/{slug}", "url": url, "versionNumber": len(runs), "kernelId": 7, **answer}

    def get_kernel_session_status(self, ask: dict[str, Any]) -> dict[str, Any]:
        run = self._run(ask)
        return {"status": run.status, "failureMessage": run.failure}

    def list_kernel_session_output(self, ask: dict[str, Any]) -> dict[str, Any]:
        """One file a page."""
        run = self._run(ask)
        working = run.folder / "working"
        names = sorted(path.relative_to(working).as_posix() for path in working.rglob("*") if path.is_file())
        place = int(ask.get("pageToken") or 0)
        link = f"{STORAGE}/outputs/{run.folder.name}"
        files = [{"fileName": name, "url": f"{link}/{name}?{SIGNATURE}"} for name in names[place : place + 1]]
        token = {"nextPageToken": str(place + 1)} if place + 1 < len(names) else {}
        return {"files": files, "log": json.dumps([{"data": line} for line in run.log]), **token}

    def get_accelerator_quota_statistics(self, ask: dict[str, Any]) -> dict[str, Any]:
        parts = {
            name: {"timeUsed": f"{used}s", "totalTimeAllowed": f"{allowed}s"}
            for name, (used, allowed) in self.quota.items()
        }
        return {"quotaRefreshTime": "2026-01-10T00:00:00Z", **parts}

    def get_dataset_status(self, ask: dict[str, Any]) -> dict[str, Any]:
        if f"{ask['ownerSlug']}/{ask['datasetSlug']}" not in self.datasets:
            raise Http(403, "Permission 'datasets.get' was denied")
        self.dataset_polls -= 1
        return {"status": "READY" if self.dataset_polls < 0 else "BLOBS_RECEIVED"}

    def create_dataset(self, ask: dict[str, Any]) -> dict[str, Any]:
        return self._dataset(f"{ask['ownerSlug']}/{ask['slug']}", ask["files"])

    def create_dataset_version(self, ask: dict[str, Any]) -> dict[str, Any]:
        return self._dataset(f"{ask['ownerSlug']}/{ask['datasetSlug']}", ask["body"]["files"])

    # what they share

    def _contest(self, ask: dict[str, Any]) -> Contest:
        if ask["competitionName"] not in self.contests:
            raise Http(404, "Not found")
        return self.contests[ask["competitionName"]]

    def _about(self, slug: str) -> dict[str, Any]:
        contest = self.contests[slug]
        return {
            "ref": f"https://www.kaggle.com/competitions/{slug}",
            "title": contest.title,
            "userHasEntered": contest.entered,
            "deadline": "2030-01-01T00:00:00Z",
            "maxDailySubmissions": contest.daily,
            "evaluationMetric": "Macro F-Score",
            "isKernelsSubmissionsOnly": contest.kernels_only,
            "submissionsDisabled": contest.closed,
        }

    def _upload(self, about: dict[str, Any]) -> dict[str, Any]:
        token = f"upload-{next(self._count)}"
        self.uploads[token] = {**about, "data": b""}
        return {"token": token, "createUrl": f"{STORAGE}/uploads/{token}?{SIGNATURE}"}

    def _submitted(self, ask: dict[str, Any], data: bytes, name: str) -> dict[str, Any]:
        status, public, private, error = self.contests[ask["competitionName"]].score(data)
        made = {
            "ref": 1000 + next(self._count),
            "slug": ask["competitionName"],
            "name": name,
            "message": ask.get("submissionDescription", ""),
            "final": (status, public, private, error),
            "sha256": hashlib.sha256(data).hexdigest(),
            "polls": 0,
        }
        self.submissions.append(made)
        return {"message": "Successfully submitted", "ref": made["ref"]}

    def _shown(self, made: dict[str, Any]) -> dict[str, Any]:
        status, public, private, error = (
            made["final"] if made["polls"] > self.pending_polls else ("PENDING", "", "", "")
        )
        about = {
            "ref": made["ref"],
            "fileName": made["name"],
            "description": made["message"],
            "date": "2026-01-01T00:00:00Z",
        }
        return {**about, "status": status, "publicScore": public, "privateScore": private, "errorDescription": error}

    def _dataset(self, name: str, files: list[dict[str, Any]]) -> dict[str, Any]:
        uploads = [self.uploads[file["token"]] for file in files]
        self.datasets[name] = {upload["name"]: upload["data"] for upload in uploads}
        return {"ref": name, "url": f"https://www.kaggle.com/datasets/{name}", "status": "ok"}

    def _run(self, ask: dict[str, Any]) -> Run:
        runs = self.kernels.get(f"{ask['userName']}/{ask['kernelSlug']}")
        if not runs:
            raise Http(403, "Permission 'kernels.get' was denied")
        label = ask.get("versionLabel", "")
        return runs[int(label[1:]) - 1] if label else runs[-1]

    def _run_kernel(self, run: Run) -> None:
        """Execute the pushed script in a clean folder: ./working, ../input/<competition>, ../input/<dataset>."""
        working = run.folder / "working"
        working.mkdir(parents=True)
        sources = {slug: self.contests[slug].files for slug in run.request.get("competitionDataSources", [])}
        sources |= {ref.split("/")[1]: self.datasets.get(ref, {}) for ref in run.request.get("datasetDataSources", [])}
        for name, files in sources.items():
            for file, data in files.items():
                path = run.folder / "input" / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        site = run.folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(HIDE.format(hidden=self.hidden_modules))
        script, text = run.folder / "script.py", run.request["text"]
        if run.request["kernelType"] == "notebook":
            cells = json.loads(text)["cells"]
            text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        script.write_text(text)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(run.folder),
            "PYTHONPATH": str(site),
            **self.kernel_environment,
        }
        run.status = "RUNNING"
        process = subprocess.Popen(
            [sys.executable, "-u", str(script)],
            cwd=working,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout
        for line in process.stdout:
            run.log.append(line)
        run.failure = "" if process.wait() == 0 else f"Your code exited with {process.returncode}"
        run.status = "ERROR" if process.returncode else "COMPLETE"


HIDE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hide())
"""


class Http(Exception):
    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}):
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclass
class Redirect:
    url: str


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kaggle: FakeKaggle

    def do_POST(self) -> None:
        method = urlsplit(self.path).path.rsplit("/", 1)[-1]
        ask = json.loads(self._body() or b"{}")
        self.kaggle.calls.append((method, ask))
        self.kaggle.headers.append((method, dict(self.headers)))
        try:
            fault = self.kaggle.fault(method)
            if self._misbehave(fault):
                return
            self._authorize(method)
            answer = getattr(self.kaggle, re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower())(ask)
            if fault == "lost":  # done, but the answer never arrives
                self._drop()
            elif isinstance(answer, Redirect):
                self._send(302, b"", {"Location": answer.url})
            else:
                self._json(200, answer)
        except Http as error:
            self._json(error.status, {"code": error.status, "message": str(error)}, error.headers)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        kind, *rest = parts.path.strip("/").split("/")
        self.kaggle.headers.append((f"GET {kind}", dict(self.headers)))
        if kind == "archives":
            self.kaggle.calls.append(("archive", dict(self.headers)))
            self._archive(self.kaggle.contests[rest[0]].archive)
        elif kind == "outputs":
            if not self._misbehave(self.kaggle.fault("output")):
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
        if not self._misbehave(self.kaggle.fault("upload")):
            self.kaggle.uploads[token]["data"] = data
            self._send(200, b"")

    def _authorize(self, method: str) -> None:
        told = self.headers.get("Authorization", "")
        basic = base64.b64encode(f"{self.kaggle.username}:{self.kaggle.key}".encode()).decode()
        if method != "IntrospectToken" and told not in {f"Basic {basic}", f"Bearer {self.kaggle.token}"}:
            raise Http(401, "Unauthenticated")

    def _misbehave(self, fault: str) -> bool:
        """Faults that any answer can have; True when the answer is given."""
        kind, _, value = fault.partition(":")
        if kind == "429":
            raise_or_send = {"Retry-After": value} if value else {}
            body = {"error": {"code": 429, "message": "Too many requests", "status": "RESOURCE_EXHAUSTED"}}
            self._json(429, body, raise_or_send)
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
            self._send(
                403,
                b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code></Error>",
                {"Content-Type": "application/xml"},
            )
        else:
            return False
        return True

    def _archive(self, data: bytes) -> None:
        self.kaggle.served = 0.0
        fault, etag = self.kaggle.fault("archive"), f'"{hashlib.md5(data).hexdigest()}"'
        if self._misbehave(fault):
            return
        start = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and self.headers.get("If-Range", etag) == etag:
            start = int(wanted.group(1))
        body = data[start:]
        kind, _, value = fault.partition(":")
        if kind == "gzip":  # of a proxy in between
            self._send(200, gzip.compress(body), {"Content-Encoding": "gzip"})
            return
        if kind == "flip":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :]
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        length = str(len(body))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send_response(206 if start else 200)
        for name, text in headers.items():
            self.send_header(name, text)
        if kind == "nolength":
            body = body[: len(body) // 2]
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", length)
        self.end_headers()
        if kind == "cut":
            body = body[: len(body) // 2]
        try:
            step = max(1, len(body) // 40) if kind in {"slow", "hang"} else len(body) or 1
            for place in range(0, len(body), step):
                self.wfile.write(body[place : place + step])
                self.kaggle.served = min(1.0, (place + step) / len(body))
                if kind == "slow":
                    time.sleep(float(value or 0.05))
                if kind == "hang" and place >= len(body) // 2:
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
        run, told = runs[-1], 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who followed it has left
            while run.status in {"QUEUED", "RUNNING"} or told < len(run.log):
                for line in run.log[told:]:
                    self.wfile.write(f"data: {json.dumps({'stream_name': 'stdout', 'data': line})}\n\n".encode())
                    told += 1
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(b"data: END_OF_LOG\n\n")
        self._drop()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _json(self, status: int, value: Any, headers: Mapping[str, str] = {}) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drop(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: tests look at `calls`."""
