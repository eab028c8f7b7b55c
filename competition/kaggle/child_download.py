"""Child process: download files of a competition and outputs of a kernel; an interrupted download is resumed with a Range request.

The `kaggle` package addresses the request only. The bytes are read by this module, because kaggle 2.2.4 may write an
error page over a partial file and append to it, hides connection resets, and saves files of different folders under
one name. Nothing is retried here: client.py decides about retries.
"""

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

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
    save(answer, Path(folder) / f"{slug}.zip", emit, 0, 0, is_verified_later=True)  # by the checksums in the archive


def download_files(kaggle: "KaggleClient", emit: Emit, slug: str, folder: str, files: Mapping[str, int | None]) -> None:
    """Download some files of the competition below `folder`.

    files: name -> bytes, None = unknown. Files that exist are not downloaded again.
    """
    done, total = 0, sum(size or 0 for size in files.values())
    for name, size in files.items():
        target = Path(folder).joinpath(*name.split("/"))
        if not target.is_file():
            fields = {"competitionName": slug, "fileName": name}
            answer = send(kaggle, "competitions", "DownloadDataFile", fields, stream=True)
            if "html" in answer.headers.get("Content-Type", "") and not name.endswith((".html", ".htm")):
                raise ReportedFailure("page", f"Kaggle sent another thing than {name}")
            save(answer, target, emit, done, total, is_verified_later=False)
        done += size or 0
        emit("progress", done=done, total=total)


def kernel_output(
    kaggle: "KaggleClient", emit: Emit, kernel: Mapping[str, object], folder: str, only: str = ""
) -> None:
    """Download the output files of a kernel into the empty `folder`.

    kernel: of client.kernel_fields.  only: name of the one file to download; "" = all. A path outside `folder` or a
    truncated file is an error.
    """
    import requests

    for page in pages(kaggle, "kernels", "ListKernelSessionOutput", "files", pageSize=100, **kernel):
        for file in page:
            name, url = text(file.get("fileName")), text(file.get("url"))
            target = Path(folder).joinpath(*name.split("/"))
            if only and name != only:
                continue
            if not is_safe_path(name):
                raise ReportedFailure("name", f"an output file is called {name!r}")
            if not url:
                raise ReportedFailure("answer", f"it has no link for {name}")
            answer = requests.get(url, stream=True, timeout=TIMEOUT)
            answer.raise_for_status()
            save(answer, target, emit, 0, 0, is_verified_later=False)


def save(answer: "Response", target: Path, emit: Emit, before: int, total: int, is_verified_later: bool) -> None:
    """Write the body of `answer` to `target`.part and rename it to `target` when it is complete.

    answer: a GET of the object, headers read, body not. An earlier .part file is resumed if it belongs to the same
    object (same ETag or Last-Modified, and length) and a mixture of two objects would be noticed: by the MD5 that the
    storage sends, or because the caller verifies the content (is_verified_later).
    before, total: bytes, for the progress events; total 0 = the size of this file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part, identity_file = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json")
    identity, size, md5 = _identity(answer)
    can_resume = identity is not None and (is_verified_later or md5) and read_record(identity_file, dict) == identity
    written = part.stat().st_size if can_resume and part.is_file() else 0
    if written and written == size:
        answer.close()
        _finish(part, identity_file, target, md5)
        return
    if 0 < written < size and answer.history:  # without a redirect it is Kaggle's own answer, to a POST
        answer, written = _continue(answer, part, size, str((identity or {}).get("validator")))
    else:
        written = 0
    if not written:
        identity, size, md5 = _identity(answer)
        part.unlink(missing_ok=True)
        identity_file.write_text(json.dumps(identity), encoding="utf-8")
    last_event = 0.0
    with part.open("ab") as file:
        for chunk in answer.iter_content(CHUNK):
            file.write(chunk)
            written += len(chunk)
            if time.monotonic() - last_event > 0.2:
                last_event = time.monotonic()
                emit("progress", done=before + written, total=total or size)
    emit("progress", done=before + written, total=total or size)
    if size and written != size:
        part.unlink()
        raise ReportedFailure("damaged", f"{target.name} has {written} of {size} bytes")
    _finish(part, identity_file, target, md5)


def _continue(answer: "Response", part: Path, size: int, validator: str) -> tuple["Response", int]:
    """Request the bytes that `part` lacks: (answer, bytes of the part), or (answer with the whole object, 0).

    The part is removed if the storage sends another range or refuses this one.  size: of the whole object, in bytes.
    """
    import requests

    answer.close()
    written = part.stat().st_size
    headers = {"Range": f"bytes={written}-", "If-Range": validator, "Accept-Encoding": "identity"}
    ranged = requests.get(answer.url, headers=headers, stream=True, timeout=TIMEOUT)
    if ranged.status_code == 206 and ranged.headers.get("Content-Range", "") == f"bytes {written}-{size - 1}/{size}":
        return ranged, written
    if ranged.status_code in (206, 412, 416):
        part.unlink()
        raise ReportedFailure("damaged", f"the rest of {part.stem} could not be requested")
    ranged.raise_for_status()
    return ranged, 0


def _finish(part: Path, identity_file: Path, target: Path, md5: str) -> None:
    """Compare with the MD5 of the whole object, if there is one, and rename the file."""
    if md5:
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "md5").digest()
        if base64.b64encode(digest).decode() != md5:
            part.unlink()
            raise ReportedFailure("damaged", f"{target.name} does not match its MD5")
    part.replace(target)
    identity_file.unlink(missing_ok=True)


def _identity(answer: "Response") -> tuple[dict[str, object] | None, int, str]:
    """(validators and size of this version of the object, its size, its MD5).

    None if the server sends no validators. Size 0 = unknown (no Content-Length, or a proxy that compresses).
    MD5: base64, as Google's storage sends it; "" = not sent, or of the compressed bytes.
    """
    validator, modified = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
    match = re.search(r"\bmd5=([A-Za-z0-9+/]+=*)", answer.headers.get("x-goog-hash", ""))
    md5 = match[1] if match and "Content-Encoding" not in answer.headers else ""
    length = answer.headers.get("Content-Length") or ""
    size = int(length) if length.isdecimal() and "Content-Encoding" not in answer.headers else 0
    identity = {"validator": validator or modified, "modified": modified, "md5": md5, "size": size}
    return (identity if size and (validator or modified) else None), size, md5
