"""Child process: download the archive of a competition and outputs of a kernel; an interrupted download is resumed with a Range request.

The `kaggle` package addresses the request only. The bytes are read by this module, because kaggle 2.2.4 may write an
error page over a partial file and append to it, hides connection resets, and saves files of different folders under
one name. Nothing is retried here: client.py decides about retries.
"""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich import filesize

from competition.files.child_process import Emit
from competition.files.manifest import read_record
from competition.kaggle.answers import is_safe_path, text
from competition.kaggle.child_requests import TIMEOUT, ReportedFailure, pages, send

if TYPE_CHECKING:
    from kagglesdk.kaggle_client import KaggleClient
    from requests import Response

CHUNK = 1 << 16  # bytes; the most that a broken connection loses


def download(kaggle: "KaggleClient", emit: Emit, slug: str, folder: str) -> None:
    """Download all files of the competition as <folder>/<slug>.zip."""
    answer = send(kaggle, "competitions", "DownloadDataFiles", {"competitionName": slug}, stream=True)
    if not urlsplit(answer.url).path.endswith(".zip"):
        raise ReportedFailure("page", "Kaggle sent another thing than an archive")
    # The archive and about as much for its files, because images hardly compress.
    needed, free = 2 * _identity(answer)["size"], shutil.disk_usage(folder).free
    if needed > free + sum(part.stat().st_size for part in Path(folder).glob("*.part")):
        raise ReportedFailure("disk", f"{filesize.decimal(needed)} are needed, {filesize.decimal(free)} are free")
    save(answer, Path(folder) / f"{slug}.zip", emit)


def kernel_output(
    kaggle: "KaggleClient", emit: Emit, kernel: Mapping[str, object], folder: str, only: str = ""
) -> None:
    """Download the output files of a kernel into `folder`.

    kernel: of client.kernel_fields.  only: name of the one file to download; "" = all. A path outside `folder` is an error.
    """
    import requests

    for page in pages(kaggle, "kernels", "ListKernelSessionOutput", "files", pageSize=100, **kernel):
        for file in page:
            name, url = text(file.get("fileName")), text(file.get("url"))
            if only and name != only:
                continue
            if not is_safe_path(name):
                raise ReportedFailure("name", f"an output file is called {name!r}")
            if not url:
                raise ReportedFailure("answer", f"it has no link for {name}")
            answer = requests.get(url, stream=True, timeout=TIMEOUT)
            answer.raise_for_status()
            save(answer, Path(folder).joinpath(*name.split("/")), emit)


def save(answer: "Response", target: Path, emit: Emit) -> None:
    """Write the body of `answer` to `target`.part and rename it to `target` when it is complete.

    answer: a GET of the object, headers read, body not.
    An earlier .part file of an object with the same validators and size is resumed. The caller compares the content with a
    checksum, because a server may give two objects the same validators.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part, identity_file = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json")
    identity = _identity(answer)
    size = identity["size"]
    is_same = bool(size and identity["validator"]) and read_record(identity_file, dict) == identity
    written = part.stat().st_size if is_same and part.is_file() else 0
    if written == size > 0:
        answer.close()
    else:
        # Without a redirect it is Kaggle's own answer, to a POST, and has no ranges.
        can_continue = 0 < written < size and answer.history
        answer, written = _continue(answer, part, identity) if can_continue else (answer, 0)
        if not written:
            identity = _identity(answer)
            size = identity["size"]
            part.unlink(missing_ok=True)
            identity_file.write_text(json.dumps(identity), encoding="utf-8")
        last_event = 0.0
        with part.open("ab") as file:
            for chunk in answer.iter_content(CHUNK):
                file.write(chunk)
                written += len(chunk)
                if time.monotonic() - last_event > 0.2:
                    last_event = time.monotonic()
                    emit("progress", done=written, total=size)
        emit("progress", done=written, total=size)
        if size and written != size:
            part.unlink()
            raise ReportedFailure("damaged", f"{target.name} has {written} of {size} bytes")
    part.replace(target)
    identity_file.unlink(missing_ok=True)


def _continue(answer: "Response", part: Path, identity: Mapping[str, Any]) -> tuple["Response", int]:
    """Request the bytes that `part` lacks: (answer, bytes of the part), or (answer with the whole object, 0).

    The part is removed if the storage sends another range or refuses this one.
    """
    import requests

    answer.close()
    written, size = part.stat().st_size, identity["size"]
    headers = {"Range": f"bytes={written}-", "If-Range": identity["validator"], "Accept-Encoding": "identity"}
    ranged = requests.get(answer.url, headers=headers, stream=True, timeout=TIMEOUT)
    if ranged.status_code == 206 and ranged.headers.get("Content-Range", "") == f"bytes {written}-{size - 1}/{size}":
        return ranged, written
    if ranged.status_code in (206, 412, 416):
        part.unlink()
        raise ReportedFailure("damaged", f"the rest of {part.stem} could not be requested")
    ranged.raise_for_status()
    return ranged, 0


def _identity(answer: "Response") -> dict[str, Any]:
    """The size of this version of the object, 0 = unknown (no length, or compressed by a proxy), and its validators."""
    names = ("ETag", "Last-Modified", "x-goog-hash")
    etag, modified, digest = (answer.headers.get(name) for name in names)
    length = answer.headers.get("Content-Length") or ""
    size = int(length) if length.isdecimal() and "Content-Encoding" not in answer.headers else 0
    return {"validator": etag or modified, "modified": modified, "digest": digest, "size": size}
