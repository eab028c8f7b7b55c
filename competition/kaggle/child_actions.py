"""Child process that runs one action of the `kaggle` package, for client.py. See competition/files/child_process.py.

Each action takes an authenticated client, `emit` and plain values. Its time limits: kaggle.stall, for which it may be silent
(client.py), and that of a connection (child_requests.py).
"""

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from competition.files.child_process import Emit, Event, answer_parent
from competition.kaggle.answers import nested, text, whole
from competition.kaggle.child_download import download, kernel_output
from competition.kaggle.child_requests import ReportedFailure, call, failure_of, pages

if TYPE_CHECKING:
    from kagglesdk.kaggle_client import KaggleClient

PAGE = 100  # submissions


def answer(request: Event, emit: Emit) -> object:
    """Run the action of the request and return its value."""
    import kaggle  # authenticates, but hides its errors, so authenticate again to get them

    api, action, arguments = kaggle.api, request["action"], request["arguments"]
    try:
        if not getattr(api, "_authenticated", False):
            api.authenticate()
    except SystemExit as error:
        raise ReportedFailure("credentials", "it has expired, or it is wrong") from error
    emit("ready")  # restarts the stall timer: importing the package takes seconds on a busy machine
    if action == "username":
        return api.config_values.get(api.CONFIG_NAME_USER) or ""
    with api.build_kaggle_client() as client:  # one connection for all requests
        if action == "call":
            return call(client, **arguments)
        actions: dict[str, Callable[..., object]] = {each.__name__: each for each in ACTIONS}
        return actions[action](client, emit, **arguments)


def submit(client: "KaggleClient", emit: Emit, slug: str, path: str, message: str) -> Mapping[str, object]:
    """Kaggle's answer to a new submission; ReportedFailure of kind "upload" if the upload was refused.

    The event "uploaded" is emitted after the upload: only later failures can hide a submission whose answer was lost.
    """
    import kaggle
    from kaggle.api.kaggle_api_extended import ResumableUploadResult

    name, facts = Path(path).name, Path(path).stat()
    size = {"contentLength": facts.st_size, "lastModifiedEpochSeconds": int(facts.st_mtime)}
    upload = call(client, "competitions", "StartSubmissionUpload", competitionName=slug, fileName=name, **size)
    if not text(upload.get("createUrl")) or not text(upload.get("token")):
        raise ReportedFailure("answer", "it names no place for the upload")
    if kaggle.api.upload_complete(path, text(upload["createUrl"]), True) != ResumableUploadResult.COMPLETE:
        raise ReportedFailure("upload", "Could not submit to competition")
    emit("uploaded")
    fields = {"blobFileTokens": text(upload["token"]), "submissionDescription": message}
    return call(client, "competitions", "CreateSubmission", competitionName=slug, **fields)


def submissions(client: "KaggleClient", emit: Emit, slug: str, newest: bool) -> list[Mapping[str, object]]:
    """All submissions of the team as Kaggle lists them, the newest first; {} for a row that is no object.

    newest: only those of the first page.
    """
    rows: dict[object, Mapping[str, object]] = {}  # by number, because the last page may be repeated
    for page in pages(client, "competitions", "ListSubmissions", "submissions", competitionName=slug, pageSize=PAGE):
        for row in page:
            rows.setdefault(text(row.get("ref")) or len(rows), row)
        emit("progress", done=len(rows), total=0)
        if newest:
            break
    return list(rows.values())


def kernel_source(client: "KaggleClient", emit: Emit, kernel: Mapping[str, object], phrase: str) -> dict[str, object]:
    """{"version", "holds", "has_source"}: the version number, whether its source contains `phrase`, and whether it was sent.

    kernel: of client.kernel_fields. The version is 0 if Kaggle does not say which is the newest.
    """
    answer = call(client, "kernels", "GetKernel", **kernel)
    number = whole(text(kernel["versionLabel"]).removeprefix("v"))
    number = number or whole(nested(answer.get("metadata")).get("currentVersionNumber"))
    source = text(nested(answer.get("blob")).get("source"))
    return {"version": number or 0, "holds": phrase in source, "has_source": bool(source)}


def kernel_log(client: "KaggleClient", emit: Emit, kernel: str, skip: int) -> None:
    """Emit the lines of the log after the first `skip` until it ends."""
    import kaggle

    for count, line in enumerate(kaggle.api.kernels_logs_stream(kernel), 1):
        if count > skip:
            emit("log", text=text(nested(line).get("data")), count=count)


def save_dataset(client: "KaggleClient", emit: Emit, folder: str, exists: bool, note: str) -> None:
    """Create the private dataset in `folder`, or a new version of it if it exists.  note: the version's description."""
    import kaggle

    api = kaggle.api
    create = partial(api.dataset_create_version, folder, note) if exists else partial(api.dataset_create_new, folder)
    answer = create(quiet=True)
    if answer is None or answer.error or (answer.status or "ok").lower() == "error":
        raise ReportedFailure("dataset", (answer.error if answer is not None else "") or "Kaggle gave no reason")


ACTIONS = (submit, submissions, download, save_dataset, kernel_source, kernel_log, kernel_output)

if __name__ == "__main__":
    # The folder of the package's settings and upload links, which a killed parent leaves.
    links = os.environ.get("KAGGLE_CONFIG_DIR", "")
    answer_parent(answer, failure_of, partial(shutil.rmtree, links, ignore_errors=True))
