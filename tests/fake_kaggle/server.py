"""A stand-in for Kaggle on loopback, for the unmodified `kaggle` package.

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
        self.unlisted_looks = 0  # a new submission or kernel version is missing from the next so many lists
        self.held = threading.Event()  # set when an answer is held back by the fault "after:hold"
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

    def download_data_file(self, ask: dict[str, Any]) -> "Redirect":
        contest, slug, name = self._contest(ask), ask["competitionName"], ask["fileName"]
        if name not in contest.files:
            raise Http(404, "Not found")
        return Redirect(f"{STORAGE}/files/{slug}/{quote(name)}?{SIGNATURE}&X-Goog-Expires=60")

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
        mine = [made for made in self.submissions if made["slug"] == ask["competitionName"] and self._is_listed(made)]
        return {"submissions": [self._shown(made) for made in reversed(mine)]}

    def get_submission_limits(self, ask: dict[str, Any]) -> dict[str, Any]:
        contest = self._contest(ask)
        made = sum(made["slug"] == ask["competitionName"] for made in self.submissions)
        return {"numToday": made, "numTotal": made, "numAllowedNow": max(0, contest.daily - made)}

    def get_leaderboard(self, ask: dict[str, Any]) -> dict[str, Any]:
        teams = enumerate(self._contest(ask).leaderboard[: ask.get("pageSize") or 20], 1)
        date = "2026-01-01T00:00:00Z"
        rows = [{"teamId": n, "teamName": name, "submissionDate": date, "score": score} for n, (name, score) in teams]
        return {"submissions": rows}

    def save_kernel(self, ask: dict[str, Any]) -> dict[str, Any]:
        owner, _ = ask["slug"].split("/")
        slug = re.sub(r"[^a-z0-9]+", "-", ask["newTitle"].lower()).strip("-")  # from the title, whatever the id says
        answer: dict[str, Any] = {}
        for kind, known in (("competition", self.contests), ("dataset", self.datasets)):
            if dropped := [name for name in ask.get(f"{kind}DataSources", []) if name not in known]:
                answer[f"invalid{kind.title()}Sources"] = dropped
        runs = self.kernels[f"{owner}/{slug}"]
        run = Run(ask, self.folder / f"{owner}_{slug}_v{len(runs) + 1}")
        run.unlisted = self.unlisted_looks
        runs.append(run)
        threading.Thread(target=self._run_kernel, args=(run,), daemon=True).start()
        url = f"https://www.kaggle.com/code/{owner}/{slug}"
        return {"ref": f"/code/{owner}/{slug}", "url": url, "versionNumber": len(runs), "kernelId": 7, **answer}

    def get_kernel_session_status(self, ask: dict[str, Any]) -> dict[str, Any]:
        run = self._run(ask)
        return {"status": run.status, "failureMessage": run.failure}

    def get_kernel(self, ask: dict[str, Any]) -> dict[str, Any]:
        runs = self.kernels.get(f"{ask['userName']}/{ask['kernelSlug']}", [])
        for run in runs:
            run.unlisted -= 1
        listed = [number for number, run in enumerate(runs, 1) if run.unlisted < 0]
        if not listed:
            raise Http(403, "Permission 'kernels.get' was denied")
        wanted = int(ask["versionLabel"][1:]) if ask.get("versionLabel") else listed[-1]
        return {"metadata": {"currentVersionNumber": wanted}, "blob": {"source": runs[wanted - 1].request["text"]}}

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
            "userRank": contest.user_rank,
            "teamCount": len(contest.leaderboard),
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
            "unlisted": self.unlisted_looks,
        }
        self.submissions.append(made)
        return {"message": "Successfully submitted", "ref": made["ref"]}

    def _is_listed(self, made: dict[str, Any]) -> bool:
        made["unlisted"] -= 1
        return made["unlisted"] < 0

    def _shown(self, made: dict[str, Any]) -> dict[str, Any]:
        status, public, private, error = (
            made["final"] if made["polls"] > self.pending_polls else ("PENDING", "", "", "")
        )
        about = {
            "ref": made["ref"],
            "fileName": made["name"],
            "description": made["message"],
            "date": "2026-01-01T00:00:00Z",
            "teamName": "Ada's team",
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
        sources = {slug: self.contests[slug].files for slug in run.request.get("competitionDataSources", [])}
        sources |= {ref.split("/")[1]: self.datasets.get(ref, {}) for ref in run.request.get("datasetDataSources", [])}
        run_kernel(run, sources, self.hidden_modules, self.kernel_environment)
