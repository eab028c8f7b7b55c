"""The other end of the pipe: the `kaggle` package, alone in a process of its own.

The parent (kaggle_client) starts this module, writes one JSON request to its stdin, reads JSON lines from its stdout:
any number of events, then one {"event": "result"} or {"event": "error"}. Whatever the package itself prints goes to
stderr. When the parent dies, stdin ends and this process leaves.
"""

import contextlib
import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Emit = Callable[..., None]  # emit(event, **values)
CHUNK = 1 << 20  # bytes
DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR}


class Told(Exception):
    """A failure this module itself found; `kind` is one of kaggle_client.KINDS."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main() -> None:
    """One request, its events, one answer."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed from here on goes to stderr, child processes included
    sys.stdout = sys.stderr
    guard = threading.Lock()

    def emit(event: str, **values: Any) -> None:
        with guard:
            pipe.write(json.dumps({"event": event, **values}) + "\n")
            pipe.flush()

    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    code = 1
    try:
        emit("result", value=ACTIONS[request["action"]](_api(), emit, **request["arguments"]))
        code = 0
    except BaseException as error:  # the parent makes the sentence; nothing is swallowed
        emit("error", **_failure(error))
    os._exit(code)  # the package leaves threads behind on some errors


def _leave_with_parent() -> None:
    while sys.stdin.readline():
        pass
    os._exit(1)


def _api() -> Any:
    """An authenticated KaggleApi. The import authenticates, but swallows why it could not: then ask again."""
    import kaggle

    try:
        if not getattr(kaggle.api, "_authenticated", False):
            kaggle.api.authenticate()
    except SystemExit as error:
        raise Told("credentials", "the client found no credential it can use") from error
    return kaggle.api


def _failure(error: BaseException) -> dict[str, Any]:
    """kind, status, message, retry_after of any exception of the package, of requests or of the disk."""
    import requests

    answer = getattr(error, "response", None)
    if isinstance(error, Told):
        return {"kind": error.kind, "message": str(error)}
    if isinstance(error, requests.exceptions.HTTPError) and answer is not None:
        if answer.status_code in {400, 403} and "xml" in answer.headers.get("Content-Type", ""):  # storage, not Kaggle
            return {"kind": "expired", "message": f"storage answered {answer.status_code}"}
        wait = answer.headers.get("Retry-After")
        return {"kind": "http", "status": answer.status_code, "message": _message(error, answer), "retry_after": wait}
    if isinstance(error, json.JSONDecodeError):  # requests' own is one, too
        return {"kind": "answer", "message": "the answer is not JSON"}
    if isinstance(error, OSError) and error.errno in DISK:
        return {"kind": "disk", "message": os.strerror(error.errno)}
    if isinstance(error, requests.exceptions.RequestException | OSError | EOFError):
        return {"kind": "connection", "message": f"{type(error).__name__}: {error}"}
    if isinstance(error, KeyboardInterrupt):
        return {"kind": "interrupted", "message": "interrupted"}
    if type(error).__module__.startswith("urllib3"):
        return {"kind": "connection", "message": f"{type(error).__name__}: {error}"}
    if isinstance(error, ValueError) and "does not match expected size" in str(error):
        return {"kind": "damaged", "message": str(error)}
    return {"kind": "client", "message": f"{type(error).__name__}: {error}"}


def _message(error: BaseException, answer: Any) -> str:
    """What the server said, from any of the three shapes of its errors."""
    with contextlib.suppress(Exception):
        told = answer.json()
        inner = told.get("error", told)
        return str(inner.get("message") if isinstance(inner, dict) else inner)
    return str(error).split(" for url:")[0]


def whoami(api: Any, emit: Emit) -> dict[str, str]:
    api.competitions_list(search="titanic")  # a wrong key only shows at the first call
    return {"username": api.config_values.get(api.CONFIG_NAME_USER) or ""}


def competition(api: Any, emit: Emit, slug: str) -> dict[str, Any]:
    from kagglesdk.competitions.types.competition_api_service import ApiGetCompetitionRequest

    request = ApiGetCompetitionRequest()
    request.competition_name = slug
    with api.build_kaggle_client() as kaggle:
        found = kaggle.competitions.competition_api_client.get_competition(request)
    return {
        "slug": found.ref.rstrip("/").rsplit("/", 1)[-1],
        "title": found.title,
        "entered": bool(found.user_has_entered),
        "deadline": found.deadline.isoformat() if found.deadline else "",
        "daily": found.max_daily_submissions,
        "metric": found.evaluation_metric,
        "kernels_only": bool(found.is_kernels_submissions_only),
        "closed": bool(found.submissions_disabled),
    }


def listing(api: Any, emit: Emit, slug: str) -> dict[str, int]:
    """name -> bytes. A page may be empty and still name a next one; a token that comes back ends the walk.

    Thousands of files are many pages, and Kaggle limits the rate: then what is known so far is the answer.
    """
    files: dict[str, int] = {}
    token: str | None = None
    seen: set[str | None] = set()
    while token not in seen:
        seen.add(token)
        try:
            page = api.competition_list_files(slug, token, 200)
        except Exception as error:
            if files and _failure(error).get("status") == 429:
                break
            raise
        files |= {file.name: file.total_bytes for file in page.files or []}
        token = page.next_page_token or None
        emit("progress", done=len(files), total=0)
        if token is None:
            break
    return files


def download(api: Any, emit: Emit, slug: str, folder: str, force: bool) -> str:
    """The whole competition as one zip, resumed where an earlier run stopped; the path of what came."""
    _drop_what_is_no_zip(Path(folder))
    with _watching(Path(folder), emit):
        api.competition_download_files(slug, folder, force=force, quiet=True)
    came = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    wanted = Path(folder) / f"{slug}.zip"
    if wanted not in came:
        names = ", ".join(path.relative_to(folder).as_posix() for path in came)
        raise Told("page", f"Kaggle sent another thing than an archive ({names or 'nothing'})")
    return str(wanted)


def _drop_what_is_no_zip(folder: Path) -> None:
    """kaggle 2.2.4 writes an error page over a part and later appends the rest of the zip: never resume that."""
    for part in folder.glob("*.zip"):
        with part.open("rb") as file:
            head = file.read(4)
        if not b"PK\x03\x04".startswith(head):
            for file_of_it in folder.glob(f"*{part.name}*"):
                file_of_it.unlink()


@contextlib.contextmanager
def _watching(folder: Path, emit: Emit) -> Iterator[None]:
    """Report the bytes in `folder` while they grow: the parent stops a process that reports nothing for too long.

    The package takes a full disk for a bad connection and waits a minute for it; when nothing grows, the disk is asked.
    """
    over = threading.Event()

    def watch() -> None:
        before, still = -1, 0
        while not over.wait(0.2):
            now = before
            with contextlib.suppress(OSError):  # a file may vanish between listing and asking
                now = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            still = still + 1 if now == before else 0
            if still % 5 == 4 and (problem := _disk_problem(folder)):
                emit("error", kind="disk", message=problem)
                os._exit(1)
            if now != before:
                before = now
                emit("progress", done=now, total=0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _disk_problem(folder: Path) -> str:
    """Why a little file cannot be written here; "" when it can."""
    probe = folder / ".probe"
    try:
        probe.write_bytes(bytes(1 << 16))
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        probe.unlink(missing_ok=True)
    return ""


def submit(api: Any, emit: Emit, slug: str, path: str, message: str) -> dict[str, Any]:
    """{"ref", "message"}. An upload that was refused never became a submission: kind "upload"."""
    answer = api.competition_submit(path, message, slug, quiet=True)
    if not answer.ref and answer.message == api.COMPETITION_SUBMIT_UPLOAD_FAILED_MESSAGE:
        raise Told("upload", answer.message)
    return {"ref": answer.ref or 0, "message": answer.message or ""}


def submit_kernel(
    api: Any, emit: Emit, slug: str, kernel: str, version: int, file: str, message: str
) -> dict[str, Any]:
    answer = api.competition_submit_code(file, message, slug, kernel, version, quiet=True)
    return {"ref": answer.ref or 0, "message": answer.message or ""}


def submission(api: Any, emit: Emit, ref: int) -> dict[str, Any]:
    from kagglesdk.competitions.types.competition_api_service import ApiGetSubmissionRequest

    request = ApiGetSubmissionRequest()
    request.ref = ref
    with api.build_kaggle_client() as kaggle:
        return _submission(kaggle.competitions.competition_api_client.get_submission(request))


def submissions(api: Any, emit: Emit, slug: str) -> list[dict[str, Any]]:
    """The newest hundred."""
    return [_submission(found) for found in api.competition_submissions(slug, page_size=100) or [] if found]


def _submission(found: Any) -> dict[str, Any]:
    return {
        "ref": found.ref,
        "file": found.file_name or "",
        "message": found.description or "",
        "status": found.status.name.rsplit("_", 1)[-1],
        "public": found.public_score or "",
        "private": found.private_score or "",
        "error": found.error_description or "",
        "date": found.date.isoformat() if found.date else "",
    }


def limits(api: Any, emit: Emit, slug: str) -> dict[str, int]:
    found = api.competition_get_submission_limits(slug)
    return {"today": found.num_today, "total": found.num_total, "left": found.num_allowed_now}


def quota(api: Any, emit: Emit) -> dict[str, Any]:
    """Seconds used and allowed this week, for each accelerator."""
    found = api.quota_view()

    def seconds(part: Any) -> dict[str, float]:
        return {"used": part.time_used.total_seconds(), "allowed": part.total_time_allowed.total_seconds()}

    refresh = found.quota_refresh_time.isoformat() if found.quota_refresh_time else ""
    parts = {"gpu": found.gpu_quota, "tpu": found.tpu_quota}
    return {"refresh": refresh, **{name: seconds(part) for name, part in parts.items() if part is not None}}


def push(api: Any, emit: Emit, folder: str, seconds: int, accelerator: str) -> dict[str, Any]:
    """Every source Kaggle would not take is an error here: it drops them and runs without."""
    answer = api.kernels_push(folder, str(seconds) if seconds else None, accelerator or None)
    if answer is None or answer.error:
        raise Told("push", answer.error if answer is not None else "Kaggle gave no answer")
    for what in ("competition", "dataset", "kernel", "model"):
        if dropped := getattr(answer, f"invalid_{what}_sources", None):
            raise Told("sources", f"{what} sources {', '.join(dropped)}")
    return {"ref": answer.ref or "", "url": answer.url or "", "version": answer.version_number or 0}


def kernel_status(api: Any, emit: Emit, owner: str, slug: str, version: int) -> dict[str, str]:
    from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelSessionStatusRequest

    request = _of_version(ApiGetKernelSessionStatusRequest(), owner, slug, version)
    with api.build_kaggle_client() as kaggle:
        found = kaggle.kernels.kernels_api_client.get_kernel_session_status(request)
    return {"status": found.status.name, "message": found.failure_message or ""}


def kernel_log(api: Any, emit: Emit, owner: str, slug: str, skip: int) -> int:
    """Emit the log's lines from number `skip` on, until it ends; how many there are."""
    count = 0
    for line in api.kernels_logs_stream(f"{owner}/{slug}"):
        count += 1
        if count > skip:
            emit("log", text=str(line.get("data", "")), count=count)
    return count


def kernel_output(api: Any, emit: Emit, owner: str, slug: str, version: int, folder: str) -> list[str]:
    """Every output file into `folder` (which exists and is empty); names in it. Only plain names, only whole files."""
    import requests
    from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest

    names: list[str] = []
    token = ""
    seen: set[str] = set()
    while token not in seen:
        seen.add(token)
        request = _of_version(ApiListKernelSessionOutputRequest(), owner, slug, version)
        request.page_size = 100
        if token:
            request.page_token = token
        with api.build_kaggle_client() as kaggle:
            page = kaggle.kernels.kernels_api_client.list_kernel_session_output(request)
        for file in page.files or []:
            _fetch(requests, file.url, _inside(Path(folder), file.file_name), emit)
            names.append(file.file_name)
        token = page.next_page_token or ""
        if not token:
            break
    return names


def _of_version(request: Any, owner: str, slug: str, version: int) -> Any:
    request.user_name, request.kernel_slug = owner, slug
    if version and hasattr(request, "version_label"):
        request.version_label = f"v{version}"
    return request


def _inside(folder: Path, name: str) -> Path:
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or "\0" in name or any(part in {"", ".", ".."} for part in parts):
        raise Told("name", f"an output file is called {name!r}")
    return folder.joinpath(*parts)


def _fetch(requests: Any, url: str, target: Path, emit: Emit) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with requests.get(url, stream=True, timeout=(30, 300)) as answer, target.open("wb") as file:
        answer.raise_for_status()
        for chunk in answer.iter_content(CHUNK):
            file.write(chunk)
            done += len(chunk)
            emit("progress", done=done, total=int(answer.headers.get("Content-Length", 0)))
    expected = answer.headers.get("Content-Length")
    if expected and "Content-Encoding" not in answer.headers and done != int(expected):
        raise Told("damaged", f"{target.name} holds {done} of {expected} bytes")


def dataset(api: Any, emit: Emit, folder: str, ref: str, note: str, wait: float) -> str:
    """Create the private dataset in `folder`, or a new version of it; wait until Kaggle has it ready; its status."""
    try:
        api.dataset_status(ref)
        exists = True
    except Exception as error:
        failure = _failure(error)
        if failure.get("status") not in {403, 404}:
            raise
        exists = False
    answer = (
        api.dataset_create_version(folder, note, quiet=True) if exists else api.dataset_create_new(folder, quiet=True)
    )
    if answer is None or answer.error or (answer.status or "ok").lower() == "error":
        raise Told("dataset", (answer.error if answer is not None else "") or "Kaggle gave no reason")
    until = time.monotonic() + wait
    while (status := str(api.dataset_status(ref)).lower()) != "ready":
        if status in {"error", "failed"} or time.monotonic() > until:
            raise Told("dataset", f"its status is {status}")
        emit("progress", done=0, total=0)
        time.sleep(min(5.0, max(0.1, wait / 20)))
    return status


ACTIONS: dict[str, Callable[..., Any]] = {
    "whoami": whoami,
    "competition": competition,
    "listing": listing,
    "download": download,
    "submit": submit,
    "submit_kernel": submit_kernel,
    "submission": submission,
    "submissions": submissions,
    "limits": limits,
    "quota": quota,
    "push": push,
    "kernel_status": kernel_status,
    "kernel_log": kernel_log,
    "kernel_output": kernel_output,
    "dataset": dataset,
}

if __name__ == "__main__":
    main()
