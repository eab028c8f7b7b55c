"""Child process: actions on kernels, datasets and the quota. Arguments as in child_competition."""

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from competition.files.child_process import Emit
from competition.kaggle.answers import decimal, nested, text, utc_time, whole
from competition.kaggle.child_call import TIMEOUT, call, pages
from competition.kaggle.child_failure import ReportedFailure, failure_of

if TYPE_CHECKING:
    from kaggle.api.kaggle_api_extended import KaggleApi

CHUNK = 1 << 20  # bytes
# Field of the request <- key of kernel-metadata.json.
PUSHED = {
    "slug": "id",
    "newTitle": "title",
    "language": "language",
    "kernelType": "kernel_type",
    "isPrivate": "is_private",
    "enableGpu": "enable_gpu",
    "enableTpu": "enable_tpu",
    "enableInternet": "enable_internet",
    "competitionDataSources": "competition_sources",
    "datasetDataSources": "dataset_sources",
}


def quota(api: "KaggleApi", emit: Emit) -> dict[str, object]:
    """Seconds used and allowed this week, for each accelerator; None = unknown."""
    answer = call(api, "kernels", "GetAcceleratorQuotaStatistics")
    quotas = {device: nested(answer.get(f"{device}Quota")) for device in ("gpu", "tpu")}
    return {
        "refresh": utc_time(answer.get("quotaRefreshTime")),
        **{
            f"{device}_{name}": decimal(text(quota.get(field)).removesuffix("s"))  # "3600.5s"
            for device, quota in quotas.items()
            for name, field in (("used", "timeUsed"), ("allowed", "totalTimeAllowed"))
        },
    }


def push(api: "KaggleApi", emit: Emit, folder: str, seconds: int, accelerator: str) -> dict[str, object]:
    """Push the kernel in `folder`; return {"ref", "url", "version"}.

    A rejected data source is an error: Kaggle would run the kernel without it.  seconds: of the session, 0 = Kaggle's
    own limit.
    """
    metadata = json.loads((Path(folder) / "kernel-metadata.json").read_text(encoding="utf-8"))
    source = (Path(folder) / metadata["code_file"]).read_text(encoding="utf-8")
    if metadata["kernel_type"] == "notebook":  # Kaggle expects the source of a cell as one text, files may hold lines
        notebook = json.loads(source)
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
        source = json.dumps(notebook)
    fields = {field: metadata[key] for field, key in PUSHED.items()}
    limits = {"sessionTimeoutSeconds": seconds or None, "machineShape": accelerator}
    answer = call(api, "kernels", "SaveKernel", text=source, **fields, **limits)
    if error := answer.get("error"):
        raise ReportedFailure("push", text(error) or "it gives no reason")
    for what in ("competition", "dataset", "kernel", "model"):
        if dropped := answer.get(f"invalid{what.title()}Sources"):
            names = map(text, dropped) if isinstance(dropped, list) else [text(dropped)]
            raise ReportedFailure("sources", f"{what} sources {', '.join(names)}")
    version = whole(answer.get("versionNumber"))
    return {"ref": text(answer.get("ref")), "url": text(answer.get("url")), "version": version or 0}


def kernel_status(api: "KaggleApi", emit: Emit, kernel: str, version: int) -> dict[str, str]:
    """The status as Kaggle names it, "" = none, and the message of a failure."""
    answer = call(api, "kernels", "GetKernelSessionStatus", **_of_version(kernel, version))
    return {"status": text(answer.get("status")), "message": text(answer.get("failureMessage"))}


def kernel_source(api: "KaggleApi", emit: Emit, kernel: str, version: int, phrase: str) -> dict[str, object]:
    """{"version", "holds", "has_source"}: the version number, whether its source contains `phrase`, and whether it was sent.

    version: 0 = the newest.
    """
    answer = call(api, "kernels", "GetKernel", **_of_version(kernel, version))
    number = whole(nested(answer.get("metadata")).get("currentVersionNumber"))
    source = text(nested(answer.get("blob")).get("source"))
    return {"version": version or number or 0, "holds": phrase in source, "has_source": bool(source)}


def kernel_log(api: "KaggleApi", emit: Emit, kernel: str, skip: int) -> int:
    """Emit the lines of the log after the first `skip` until it ends; return the number of lines."""
    count = 0
    for line in api.kernels_logs_stream(kernel):
        count += 1
        if count > skip:
            emit("log", text=text(nested(line).get("data")), count=count)
    return count


def kernel_output(api: "KaggleApi", emit: Emit, kernel: str, version: int, folder: str, only: str = "") -> list[str]:
    """Download the output files into the empty `folder`; return their names.

    only: name of the one file to download; "" = all. A path outside `folder` or a truncated file is an error.
    """
    names: list[str] = []

    def read_page(token: str) -> Mapping[str, object]:
        fields = {"pageSize": 100, "pageToken": token, **_of_version(kernel, version)}
        return call(api, "kernels", "ListKernelSessionOutput", **fields)

    for page in pages(read_page, "files"):
        for file in page:
            name, url = text(file.get("fileName")), text(file.get("url"))
            if (only and name != only) or name in names:
                continue
            parts = name.split("/")
            if name.startswith("/") or "\\" in name or "\0" in name or {"", ".", ".."} & set(parts):
                raise ReportedFailure("name", f"an output file is called {name!r}")
            if not url:
                raise ReportedFailure("answer", f"it has no link for {name}")
            _fetch(url, Path(folder).joinpath(*parts), emit)
            names.append(name)
    return names


def _of_version(kernel: str, version: int) -> dict[str, object]:
    owner, _, slug = kernel.partition("/")
    return {"userName": owner, "kernelSlug": slug, "versionLabel": f"v{version}" if version else None}


def _fetch(url: str, target: Path, emit: Emit) -> None:
    import requests

    target.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with requests.get(url, stream=True, timeout=TIMEOUT) as answer, target.open("wb") as file:
        answer.raise_for_status()
        for chunk in answer.iter_content(CHUNK):
            file.write(chunk)
            done += len(chunk)
            emit("progress", done=done, total=whole(answer.headers.get("Content-Length")) or 0)
    expected = whole(answer.headers.get("Content-Length"))
    if expected is not None and "Content-Encoding" not in answer.headers and done != expected:
        raise ReportedFailure("damaged", f"{target.name} holds {done} of {expected} bytes")


def dataset(api: "KaggleApi", emit: Emit, folder: str, ref: str, note: str, wait: float) -> str:
    """Create the private dataset in `folder`, or a new version of it; wait until it is ready; return its status.

    note: the version's description.  wait: seconds, during which temporary failures to read the status are ignored.
    """
    owner, _, slug = ref.partition("/")

    def read_status() -> str:
        return text(call(api, "datasets", "GetDatasetStatus", ownerSlug=owner, datasetSlug=slug).get("status")).lower()

    try:
        read_status()
        create = partial(api.dataset_create_version, folder, note)
    except Exception as error:
        if failure_of(error).get("status") not in {403, 404}:
            raise
        create = partial(api.dataset_create_new, folder)
    answer = create(quiet=True)
    if answer is None or answer.error or (answer.status or "ok").lower() == "error":
        raise ReportedFailure("dataset", (answer.error if answer is not None else "") or "Kaggle gave no reason")
    until = time.monotonic() + wait
    while True:
        try:
            status = read_status()
        except Exception as error:
            failure = failure_of(error)
            if failure["kind"] not in {"connection", "answer"} and failure.get("status", 0) not in {
                429,
                *range(500, 600),
            }:
                raise
            status = ""
        if status == "ready":
            return status
        if status in {"error", "failed"} or time.monotonic() > until:
            raise ReportedFailure("dataset", f"its status is {status or 'unknown'}")
        emit("progress", done=0, total=0)
        time.sleep(min(5.0, max(0.1, wait / 20)))
