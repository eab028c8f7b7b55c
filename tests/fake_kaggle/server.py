"""A fake Kaggle server on loopback, for the unmodified `kaggle` package.

The client is pointed here by its own means: KAGGLE_API_ENVIRONMENT=LOCALHOST makes it ask http://localhost, and
HTTP_PROXY brings every request, storage links included, to this server's port. `environment()` gives both.

Faults are queued per method: `kaggle.faults["DownloadDataFiles"] = ["429:1", "500"]` fails the first two calls.
`kaggle.calls` lists what was asked.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fake_kaggle.answering import Answering, Loopback
from fake_kaggle.machine import run_kernel
from fake_kaggle.parts import LOGIN_PAGE, SIGNATURE, STORAGE, Contest, Http, Run


class FakeKaggle(Loopback):
    """Competitions, submissions, kernels that run in a process, datasets and quota."""

    username, key, token = "ada", "planted-key-1", "KGAT_planted-token-2"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contests: dict[str, Contest] = {}
        self.submissions: list[dict[str, Any]] = []
        self.kernels: dict[str, list[Run]] = defaultdict(list)
        self.datasets: dict[str, dict[str, bytes]] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[tuple[str, dict[str, str]]] = []
        self.pending_polls = 1  # the number of requests for which a submission is PENDING
        self.unlisted_looks = 0  # the number of lists in which a new submission or kernel version is missing
        self.held = threading.Event()  # set when a response is delayed by the fault "after:hold"
        self.dataset_polls = 0  # the number of requests for which a dataset is not ready
        self.hidden_modules: tuple[str, ...] = ()  # packages that a kernel cannot import
        self.kernel_environment: dict[str, str] = {}  # further variables of kernels
        self.kernel_python = sys.executable  # that runs kernels which are new processes
        # Kernels and their stages are not new processes, but forked from one that has imported the large packages: saves seconds.
        self.forks_kernels = False
        self.served = 0.0  # the share of the last requested archive that was sent
        self.released = threading.Event()  # set to end every stalled response
        self._count = itertools.count(1)
        super().__init__(Handler, kaggle=self)

    def __exit__(self, *_: object) -> None:
        self.released.set()
        super().__exit__()

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        """Environment variables with which a process uses this server as Kaggle; `home` is an empty folder."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "HTTP_PROXY": self.address,
            "NO_PROXY": "",
            "KAGGLE_USERNAME": self.username,
            "KAGGLE_KEY": self.key,
            **variables,
        }

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def fault(self, method: str) -> str:
        return self.faults[method].pop(0) if self.faults[method] else ""

    # The services: each takes the JSON of the request and returns the JSON of the response.

    def introspect_token(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"active": True, "username": self.username} if request["token"] == self.token else {}

    def get_competition(self, request: dict[str, Any]) -> dict[str, Any]:
        contest = self._contest(request)
        about = {"title": contest.title, "deadline": "2030-01-01T00:00:00Z", "maxDailySubmissions": contest.daily}
        flags = {"userHasEntered": contest.entered, "isKernelsSubmissionsOnly": contest.kernels_only}
        return {**about, **flags, "submissionsDisabled": contest.closed, "teamCount": len(contest.leaderboard)}

    def download_data_files(self, request: dict[str, Any]) -> None:
        contest, slug = self._contest(request), request["competitionName"]
        if not contest.entered:
            raise Http(403, "You must accept this competition's rules before you'll be able to download files.")
        raise Http(302, "", {"Location": f"{STORAGE}/archives/{slug}/archive.zip?{SIGNATURE}&X-Goog-Expires=60"})

    def start_submission_upload(self, request: dict[str, Any]) -> dict[str, Any]:
        contest = self._contest(request)
        if not contest.entered:
            raise Http(403, "You must accept this competition's rules before you can submit.")
        return self._upload({"name": request["fileName"]})

    def start_blob_upload(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._upload({"name": request["name"]})

    def create_submission(self, request: dict[str, Any]) -> dict[str, Any]:
        contest = self._contest(request)
        if contest.kernels_only:
            raise Http(400, "Submission not allowed: This competition only accepts Submissions from Notebooks.")
        upload = self.uploads[request["blobFileTokens"]]
        if not self.get_submission_limits(request)["numAllowedNow"]:
            used = f"Your team has used its daily Submission allowance ({contest.daily})."
            raise Http(400, f"Submission not allowed: {used}")
        return self._submitted(request, upload["data"], upload["name"])

    def create_code_submission(self, request: dict[str, Any]) -> dict[str, Any]:
        runs = self.kernels[f"{request['kernelOwner']}/{request['kernelSlug']}"]
        file = runs[int(request["kernelVersion"]) - 1].folder / "working" / request["fileName"]
        return self._submitted(request, file.read_bytes(), request["fileName"])

    def get_submission(self, request: dict[str, Any]) -> dict[str, Any]:
        for submission in self.submissions:
            if submission["ref"] == request["ref"]:
                submission["polls"] += 1
                return self._shown(submission)
        raise Http(404, "Not found")

    def list_submissions(self, request: dict[str, Any]) -> dict[str, Any]:
        listed = []
        for submission in self._submissions_to(request):
            submission["unlisted"] -= 1
            if submission["unlisted"] < 0:
                listed.append(self._shown(submission))
        return {"submissions": listed[::-1]}

    def get_submission_limits(self, request: dict[str, Any]) -> dict[str, Any]:
        contest, count = self._contest(request), len(self._submissions_to(request))
        return {"numToday": count, "numTotal": count, "numAllowedNow": max(0, contest.daily - count)}

    def get_leaderboard(self, request: dict[str, Any]) -> dict[str, Any]:
        teams = enumerate(self._contest(request).leaderboard[: request.get("pageSize") or 20], 1)
        date = "2026-01-01T00:00:00Z"
        rows = [{"teamId": n, "teamName": name, "submissionDate": date, "score": score} for n, (name, score) in teams]
        return {"submissions": rows}

    def save_kernel(self, request: dict[str, Any]) -> dict[str, Any]:
        owner, _ = request["slug"].split("/")
        # Kaggle makes the slug from the title and ignores the id.
        slug = re.sub(r"[^a-z0-9]+", "-", request["newTitle"].lower()).strip("-")
        answer: dict[str, Any] = {}
        for kind, existing in (("competition", self.contests), ("dataset", self.datasets)):
            if dropped := [name for name in request.get(f"{kind}DataSources", []) if name not in existing]:
                answer[f"invalid{kind.title()}Sources"] = dropped
        runs = self.kernels[f"{owner}/{slug}"]
        run = Run(request, self.folder / f"{owner}_{slug}_v{len(runs) + 1}")
        run.unlisted = self.unlisted_looks
        runs.append(run)
        threading.Thread(target=self._run_kernel, args=(run,), daemon=True).start()
        url = f"https://www.kaggle.com/code/{owner}/{slug}"
        return {"ref": f"/code/{owner}/{slug}", "url": url, "versionNumber": len(runs), "kernelId": 7, **answer}

    def get_kernel_session_status(self, request: dict[str, Any]) -> dict[str, Any]:
        run = self._run(request)
        return {"status": run.status, "failureMessage": run.failure}

    def get_kernel(self, request: dict[str, Any]) -> dict[str, Any]:
        runs = self.kernels.get(f"{request['userName']}/{request['kernelSlug']}", [])
        for run in runs:
            run.unlisted -= 1
        listed = [number for number, run in enumerate(runs, 1) if run.unlisted < 0]
        if not listed:
            raise Http(403, "Permission 'kernels.get' was denied")
        version = int(request["versionLabel"][1:]) if request.get("versionLabel") else listed[-1]
        return {"metadata": {"currentVersionNumber": version}, "blob": {"source": runs[version - 1].request["text"]}}

    def list_kernel_session_output(self, request: dict[str, Any]) -> dict[str, Any]:
        """One file per page."""
        run = self._run(request)
        working = run.folder / "working"
        names = sorted(path.relative_to(working).as_posix() for path in working.rglob("*") if path.is_file())
        page_start = int(request.get("pageToken") or 0)
        link = f"{STORAGE}/outputs/{run.folder.name}"
        files = [{"fileName": name, "url": f"{link}/{name}?{SIGNATURE}"} for name in names[page_start : page_start + 1]]
        token = {"nextPageToken": str(page_start + 1)} if page_start + 1 < len(names) else {}
        return {"files": files, "log": json.dumps([{"data": line} for line in run.log]), **token}

    def get_accelerator_quota_statistics(self, request: dict[str, Any]) -> dict[str, Any]:
        gpu, tpu = ({"timeUsed": f"{used}s", "totalTimeAllowed": f"{of}s"} for used, of in ((0, 108000), (3600, 72000)))
        return {"quotaRefreshTime": "2026-01-10T00:00:00Z", "gpuQuota": gpu, "tpuQuota": tpu}

    def get_dataset_status(self, request: dict[str, Any]) -> dict[str, Any]:
        if f"{request['ownerSlug']}/{request['datasetSlug']}" not in self.datasets:
            raise Http(403, "Permission 'datasets.get' was denied")
        self.dataset_polls -= 1
        return {"status": "READY" if self.dataset_polls < 0 else "BLOBS_RECEIVED"}

    def create_dataset(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._dataset(f"{request['ownerSlug']}/{request['slug']}", request["files"])

    def create_dataset_version(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._dataset(f"{request['ownerSlug']}/{request['datasetSlug']}", request["body"]["files"])

    # Helpers of the services.

    def _contest(self, request: dict[str, Any]) -> Contest:
        if request["competitionName"] not in self.contests:
            raise Http(404, "Not found")
        return self.contests[request["competitionName"]]

    def _upload(self, fields: dict[str, Any]) -> dict[str, Any]:
        token = f"upload-{next(self._count)}"
        self.uploads[token] = {**fields, "data": b""}
        return {"token": token, "createUrl": f"{STORAGE}/uploads/{token}?{SIGNATURE}"}

    def _submitted(self, request: dict[str, Any], data: bytes, name: str) -> dict[str, Any]:
        slug, digest = request["competitionName"], hashlib.sha256(data).hexdigest()
        about = {"slug": slug, "message": request.get("submissionDescription", ""), "name": name, "sha256": digest}
        state = {"final": self.contests[slug].score(data), "polls": 0, "unlisted": self.unlisted_looks}
        submission = {"ref": 1000 + next(self._count), **about, **state}
        self.submissions.append(submission)
        return {"message": "Successfully submitted", "ref": submission["ref"]}

    def _submissions_to(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return [each for each in self.submissions if each["slug"] == request["competitionName"]]

    def _shown(self, submission: dict[str, Any]) -> dict[str, Any]:
        is_scored = submission["polls"] > self.pending_polls
        values = submission["final"] if is_scored else ("PENDING", "", "", "")
        result = dict(zip(("status", "publicScore", "privateScore", "errorDescription"), values, strict=True))
        named = {"fileName": submission["name"], "description": submission["message"], "teamName": "Ada's team"}
        return {"ref": submission["ref"], "date": "2026-01-01T00:00:00Z", **named, **result}

    def _dataset(self, name: str, files: list[dict[str, Any]]) -> dict[str, Any]:
        uploads = [self.uploads[file["token"]] for file in files]
        self.datasets[name] = {upload["name"]: upload["data"] for upload in uploads}
        return {"ref": name, "url": f"https://www.kaggle.com/datasets/{name}", "status": "ok"}

    def _run(self, request: dict[str, Any]) -> Run:
        runs = self.kernels.get(f"{request['userName']}/{request['kernelSlug']}")
        if not runs:
            raise Http(403, "Permission 'kernels.get' was denied")
        label = request.get("versionLabel", "")
        return runs[int(label[1:]) - 1] if label else runs[-1]

    def _run_kernel(self, run: Run) -> None:
        run_kernel(self, run)


class Handler(Answering):
    """Requests, responses and injected faults."""

    kaggle: FakeKaggle

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

    def _send_stored(self, fault_method: str, data: bytes) -> None:
        """Send an object of the storage or the requested range of it. fault_method: key of `faults`."""
        self.kaggle.served = 0.0
        fault, etag = self.kaggle.fault(fault_method), f'"{hashlib.md5(data).hexdigest()}"'
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
