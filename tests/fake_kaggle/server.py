"""A fake Kaggle server on loopback, for the unmodified `kaggle` package.

The client is pointed here by its own means: KAGGLE_API_ENVIRONMENT=LOCALHOST makes it ask http://localhost, and
HTTP_PROXY brings every request, storage links included, to this server's port. `environment()` gives both.

Faults are queued per method: `kaggle.faults["DownloadDataFiles"] = ["429:1", "500"]` fails the first two calls.
`kaggle.calls` lists what was asked.
"""

import hashlib
import itertools
import json
import os
import re
import sys
import threading
from collections import defaultdict
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fake_kaggle.machine import run_kernel
from fake_kaggle.parts import SIGNATURE, STORAGE, Contest, Http, Redirect, Run
from fake_kaggle.wire import Handler


class FakeKaggle:
    """Competitions, submissions, kernels that run in a process, datasets and quota. Use as a context manager."""

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
        self.etag = ""  # of every file at the storage, which then sends no MD5; "" = their own
        self.unlisted_looks = 0  # the number of lists in which a new submission or kernel version is missing
        self.held = threading.Event()  # set when a response is delayed by the fault "after:hold"
        self.dataset_polls = 0  # the number of requests for which a dataset is not ready
        self.hidden_modules: tuple[str, ...] = ()  # packages that a kernel cannot import
        self.kernel_environment: dict[str, str] = {}
        self.kernel_python = sys.executable  # that runs kernels which are new processes
        self.forks_kernels = False  # kernels run in forked processes, not in new ones
        self.served = 0.0  # the share of the last requested archive that was sent
        self.released = threading.Event()  # set to end every stalled response
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

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        """Environment variables with which a process uses this server as Kaggle; `home` is an empty folder."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "HTTP_PROXY": f"http://127.0.0.1:{self._server.server_port}",
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
        self._contest(request)
        return self._about(request["competitionName"])

    def list_data_files(self, request: dict[str, Any]) -> dict[str, Any]:
        """One file on the first page, none on the second, which has a token, and two on each later one."""
        contest, page = self._contest(request), int(request.get("pageToken") or 0)
        listed = contest.listed if contest.listed is not None else {n: len(d) for n, d in contest.files.items()}
        start, end = [(0, 1), (1, 1)][page] if page < 2 else (2 * page - 3, 2 * page - 1)
        token = {"nextPageToken": str(page + 1)} if end < len(listed) else {}
        return {"files": [{"name": name, "totalBytes": listed[name]} for name in [*listed][start:end]], **token}

    def download_data_files(self, request: dict[str, Any]) -> "Redirect":
        contest, slug = self._contest(request), request["competitionName"]
        if not contest.entered:
            raise Http(403, "You must accept this competition's rules before you'll be able to download files.")
        return Redirect(f"{STORAGE}/archives/{slug}/archive.zip?{SIGNATURE}&X-Goog-Expires=60")

    def download_data_file(self, request: dict[str, Any]) -> "Redirect":
        contest, slug, name = self._contest(request), request["competitionName"], request["fileName"]
        if name not in contest.files:
            raise Http(404, "Not found")
        return Redirect(f"{STORAGE}/files/{slug}/{quote(name)}?{SIGNATURE}&X-Goog-Expires=60")

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

    def _about(self, slug: str) -> dict[str, Any]:
        contest = self.contests[slug]
        about = {"title": contest.title, "deadline": "2030-01-01T00:00:00Z", "maxDailySubmissions": contest.daily}
        flags = {"userHasEntered": contest.entered, "isKernelsSubmissionsOnly": contest.kernels_only}
        return {**about, **flags, "submissionsDisabled": contest.closed, "teamCount": len(contest.leaderboard)}

    def _upload(self, fields: dict[str, Any]) -> dict[str, Any]:
        token = f"upload-{next(self._count)}"
        self.uploads[token] = {**fields, "data": b""}
        return {"token": token, "createUrl": f"{STORAGE}/uploads/{token}?{SIGNATURE}"}

    def _submitted(self, request: dict[str, Any], data: bytes, name: str) -> dict[str, Any]:
        result = self.contests[request["competitionName"]].score(data)
        about = {"slug": request["competitionName"], "message": request.get("submissionDescription", ""), "name": name}
        state = {
            "final": result,
            "sha256": hashlib.sha256(data).hexdigest(),
            "polls": 0,
            "unlisted": self.unlisted_looks,
        }
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
        sources = {slug: self.contests[slug].files for slug in run.request.get("competitionDataSources", [])}
        sources |= {ref.split("/")[1]: self.datasets.get(ref, {}) for ref in run.request.get("datasetDataSources", [])}
        run_kernel(run, sources, self.hidden_modules, self.kernel_environment, self.forks_kernels, self.kernel_python)
