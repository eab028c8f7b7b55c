"""Child process: actions on kernels, datasets and the quota. Arguments as in child_competition."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from competition.kaggle.child_failure import Emit, ReportedFailure, failure_of

CHUNK = 1 << 20  # bytes


def quota(api: Any, emit: Emit) -> dict[str, Any]:
    """Seconds used and allowed this week, for each accelerator."""
    answer = api.quota_view()

    def seconds(quota: Any) -> dict[str, float]:
        return {"used": quota.time_used.total_seconds(), "allowed": quota.total_time_allowed.total_seconds()}

    refresh = answer.quota_refresh_time.isoformat() if answer.quota_refresh_time else ""
    quotas = {"gpu": answer.gpu_quota, "tpu": answer.tpu_quota}
    return {"refresh": refresh, **{name: seconds(quota) for name, quota in quotas.items() if quota is not None}}


def push(api: Any, emit: Emit, folder: str, seconds: int, accelerator: str) -> dict[str, Any]:
    """Push the kernel in `folder`; return {"ref", "url", "version"}.

    A rejected data source is an error: Kaggle would run the kernel without it.  seconds: of the session, 0 = Kaggle's
    own limit.
    """
    answer = api.kernels_push(folder, str(seconds) if seconds else None, accelerator or None)
    if answer is None or answer.error:
        raise ReportedFailure("push", answer.error if answer is not None else "Kaggle gave no answer")
    for what in ("competition", "dataset", "kernel", "model"):
        if dropped := getattr(answer, f"invalid_{what}_sources", None):
            raise ReportedFailure("sources", f"{what} sources {', '.join(dropped)}")
    return {"ref": answer.ref or "", "url": answer.url or "", "version": answer.version_number or 0}


def kernel_status(api: Any, emit: Emit, owner: str, slug: str, version: int) -> dict[str, str]:
    from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelSessionStatusRequest

    request = _of_version(ApiGetKernelSessionStatusRequest(), owner, slug, version)
    with api.build_kaggle_client() as kaggle:
        answer = kaggle.kernels.kernels_api_client.get_kernel_session_status(request)
    return {"status": answer.status.name, "message": answer.failure_message or ""}


def kernel_source(api: Any, emit: Emit, owner: str, slug: str, version: int, text: str) -> dict[str, Any]:
    """{"version", "holds"}: the version number and whether its source contains `text`. version: 0 = the newest."""
    from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelRequest

    request = _of_version(ApiGetKernelRequest(), owner, slug, version)
    with api.build_kaggle_client() as kaggle:
        answer = kaggle.kernels.kernels_api_client.get_kernel(request)
    number = answer.metadata.current_version_number if answer.metadata else 0
    source = answer.blob.source if answer.blob else ""
    return {"version": version or number or 0, "holds": text in (source or "")}


def kernel_log(api: Any, emit: Emit, owner: str, slug: str, skip: int) -> int:
    """Emit the lines of the log after the first `skip` until it ends; return the number of lines."""
    count = 0
    for line in api.kernels_logs_stream(f"{owner}/{slug}"):
        count += 1
        if count > skip:
            emit("log", text=str(line.get("data", "")), count=count)
    return count


def kernel_output(api: Any, emit: Emit, owner: str, slug: str, version: int, folder: str, only: str = "") -> list[str]:
    """Download the output files into the empty `folder`; return their names.

    only: name of the one file to download; "" = all. A path outside `folder` or a truncated file is an error.
    """
    import requests
    from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest

    names: list[str] = []
    token = ""
    read_tokens: set[str] = set()
    while token not in read_tokens:
        read_tokens.add(token)
        request = _of_version(ApiListKernelSessionOutputRequest(), owner, slug, version)
        request.page_size = 100
        if token:
            request.page_token = token
        with api.build_kaggle_client() as kaggle:
            page = kaggle.kernels.kernels_api_client.list_kernel_session_output(request)
        for file in page.files or []:
            if only and file.file_name != only:
                continue
            _fetch(requests, file.url, _inside(Path(folder), file.file_name), emit)
            names.append(file.file_name)
        token = page.next_page_token or ""
    return names


def _of_version(request: Any, owner: str, slug: str, version: int) -> Any:
    request.user_name, request.kernel_slug = owner, slug
    if version and hasattr(request, "version_label"):
        request.version_label = f"v{version}"
    return request


def _inside(folder: Path, name: str) -> Path:
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or "\0" in name or any(part in {"", ".", ".."} for part in parts):
        raise ReportedFailure("name", f"an output file is called {name!r}")
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
        raise ReportedFailure("damaged", f"{target.name} holds {done} of {expected} bytes")


def dataset(api: Any, emit: Emit, folder: str, ref: str, note: str, wait: float) -> str:
    """Create the private dataset in `folder`, or a new version of it; wait until it is ready; return its status.

    note: the version's description.  wait: seconds.
    """
    try:
        api.dataset_status(ref)
        create = partial(api.dataset_create_version, folder, note)
    except Exception as error:
        if failure_of(error).get("status") not in {403, 404}:
            raise
        create = partial(api.dataset_create_new, folder)
    answer = create(quiet=True)
    if answer is None or answer.error or (answer.status or "ok").lower() == "error":
        raise ReportedFailure("dataset", (answer.error if answer is not None else "") or "Kaggle gave no reason")
    until = time.monotonic() + wait
    while (status := str(api.dataset_status(ref)).lower()) != "ready":
        if status in {"error", "failed"} or time.monotonic() > until:
            raise ReportedFailure("dataset", f"its status is {status}")
        emit("progress", done=0, total=0)
        time.sleep(min(5.0, max(0.1, wait / 20)))
    return status
