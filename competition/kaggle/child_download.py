"""Child process: download files of a competition; an interrupted download is resumed with a Range request.

The `kaggle` package requests the signed link only. The bytes are read by this module, because kaggle 2.2.4 may write an
error page over a partial file and append to it, hides connection resets, and saves files of different folders under
one name. Nothing is retried here: client.py decides about retries.
"""

import base64
import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from competition.kaggle.child_failure import Emit, ReportedFailure

CHUNK = 1 << 16  # bytes; the most that a broken connection loses
TIMEOUT = (30, 300)  # seconds: to connect, between two reads


def download(api: Any, emit: Emit, slug: str, folder: str) -> str:
    """Download all files of the competition as <folder>/<slug>.zip; return its path."""
    from kagglesdk.competitions.types.competition_api_service import ApiDownloadDataFilesRequest

    request = ApiDownloadDataFilesRequest()
    request.competition_name = slug
    target = Path(folder) / f"{slug}.zip"
    with api.build_kaggle_client() as kaggle:
        answer = kaggle.competitions.competition_api_client.download_data_files(request)
        if not urlsplit(answer.url).path.endswith(".zip"):
            raise ReportedFailure("page", f"Kaggle sent another thing than an archive ({_kind(answer)})")
        save(answer, target, emit, 0, 0)
    return str(target)


def download_files(api: Any, emit: Emit, slug: str, folder: str, files: Mapping[str, int]) -> list[str]:
    """Download some files of the competition below `folder`; return their names.

    files: name -> bytes. Files that exist are not downloaded again.
    """
    from kagglesdk.competitions.types.competition_api_service import ApiDownloadDataFileRequest

    done, total = 0, sum(files.values())
    for name, size in files.items():
        target = Path(folder).joinpath(*name.split("/"))
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            request = ApiDownloadDataFileRequest()
            request.competition_name, request.file_name = slug, name
            with api.build_kaggle_client() as kaggle:
                answer = kaggle.competitions.competition_api_client.download_data_file(request)
                if "html" in answer.headers.get("Content-Type", "") and not name.endswith((".html", ".htm")):
                    raise ReportedFailure("page", f"Kaggle sent another thing than {name} ({_kind(answer)})")
                save(answer, target, emit, done, total)
        done += size
        emit("progress", done=done, total=total)
    return list(files)


def save(answer: Any, target: Path, emit: Emit, before: int, total: int) -> None:
    """Write the body of `answer` to `target`.part and rename it to `target` when it is complete.

    answer: a GET of the object, headers read, body not. An earlier .part file is resumed if it belongs to the same
    object (same ETag or Last-Modified, and length).
    before, total: bytes, for the progress events; total 0 = the size of this file.
    """
    import requests

    part, identity_file = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json")
    identity, size = _identity(answer), _length(answer)
    written = part.stat().st_size if identity is not None and part.is_file() and _read(identity_file) == identity else 0
    if written and written == size:
        answer.close()
        _finish(part, identity_file, target, answer)
        return
    if 0 < written < size and answer.history:  # without a redirect it is Kaggle's own answer, to a POST
        answer.close()
        headers = {"Range": f"bytes={written}-", "If-Range": identity["validator"], "Accept-Encoding": "identity"}  # type: ignore[index]
        answer = requests.get(answer.url, headers=headers, stream=True, timeout=TIMEOUT)
        answer.raise_for_status()
        if answer.status_code != 206:  # the object has changed: this is the new one from its start
            written, identity, size = 0, _identity(answer), _length(answer)
    else:
        written = 0
    if not written:
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
    _finish(part, identity_file, target, answer)


def _finish(part: Path, identity_file: Path, target: Path, answer: Any) -> None:
    """Compare with the MD5 of Google's storage, if it sends one, and rename the file."""
    sent = [word.strip()[4:] for word in answer.headers.get("x-goog-hash", "").split(",") if "md5=" in word]
    if sent and "Content-Encoding" not in answer.headers:
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "md5").digest()
        if base64.b64encode(digest).decode() != sent[0]:
            part.unlink()
            raise ReportedFailure("damaged", f"{target.name} does not match its MD5")
    part.replace(target)
    identity_file.unlink(missing_ok=True)


def _length(answer: Any) -> int:
    """Bytes of the body; 0 if unknown (no Content-Length, or a proxy that compresses it)."""
    return 0 if "Content-Encoding" in answer.headers else int(answer.headers.get("Content-Length") or 0)


def _identity(answer: Any) -> dict[str, Any] | None:
    """Validator and size of this version of the object; None if the server does not send them."""
    validator = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
    return {"validator": validator, "size": _length(answer)} if validator and _length(answer) else None


def _read(path: Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _kind(answer: Any) -> str:
    return answer.headers.get("Content-Type", "").split(";")[0] or "of no known kind"
