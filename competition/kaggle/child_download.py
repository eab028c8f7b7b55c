"""In the child: files of a competition, streamed to disk and resumed where an earlier try stopped.

The package asks Kaggle for the signed link. The bytes are read here, because kaggle 2.2.4 may write an error page over
a part and append to it, does not say that a connection was reset, and saves files of different folders under one name.
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

CHUNK = 1 << 16  # bytes; what a broken connection costs at most
TIMEOUT = (30, 300)  # seconds: to connect, between two reads


def download(api: Any, emit: Emit, slug: str, folder: str) -> str:
    """The whole competition as <folder>/<slug>.zip; its path."""
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
    """Some files of the competition below `folder`; their names. files: name -> bytes; those that are here are kept."""
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
    """Write the body of `answer` to `target`, which appears when it is whole; until then it is `target`.part.

    answer: a GET of the whole object, headers read, body not. An earlier part is continued if it is of the same object
    (same ETag or Last-Modified, and length). before, total: bytes for the progress; total 0 = those of this file.
    """
    import requests

    part, note = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json")
    identity, size = _identity(answer), _length(answer)
    here = part.stat().st_size if identity is not None and part.is_file() and _read(note) == identity else 0
    if here and here == size:
        answer.close()
        _finish(part, note, target, answer)
        return
    if 0 < here < size and answer.history:  # without a redirect it is Kaggle's own answer, to a POST
        answer.close()
        headers = {"Range": f"bytes={here}-", "If-Range": identity["validator"], "Accept-Encoding": "identity"}  # type: ignore[index]
        answer = requests.get(answer.url, headers=headers, stream=True, timeout=TIMEOUT)
        answer.raise_for_status()
        if answer.status_code != 206:  # the object has changed: this is the new one from its start
            here, identity, size = 0, _identity(answer), _length(answer)
    else:
        here = 0
    if not here:
        part.unlink(missing_ok=True)
        note.write_text(json.dumps(identity), encoding="utf-8")
    said = 0.0
    with part.open("ab") as file:
        for chunk in answer.iter_content(CHUNK):
            file.write(chunk)
            here += len(chunk)
            if time.monotonic() - said > 0.2:
                said = time.monotonic()
                emit("progress", done=before + here, total=total or size)
    emit("progress", done=before + here, total=total or size)
    if size and here != size:
        part.unlink()
        raise ReportedFailure("damaged", f"{target.name} has {here} of {size} bytes")
    _finish(part, note, target, answer)


def _finish(part: Path, note: Path, target: Path, answer: Any) -> None:
    """Compare with the MD5 that Google's storage sends, where it sends one, and give the file its name."""
    sent = [word.strip()[4:] for word in answer.headers.get("x-goog-hash", "").split(",") if "md5=" in word]
    if sent and "Content-Encoding" not in answer.headers:
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "md5").digest()
        if base64.b64encode(digest).decode() != sent[0]:
            part.unlink()
            raise ReportedFailure("damaged", f"{target.name} does not match its MD5")
    part.replace(target)
    note.unlink(missing_ok=True)


def _length(answer: Any) -> int:
    """Bytes of the body; 0 when it is not known (no length, or a proxy that packs it)."""
    return 0 if "Content-Encoding" in answer.headers else int(answer.headers.get("Content-Length") or 0)


def _identity(answer: Any) -> dict[str, Any] | None:
    """What tells one version of an object from another; None when the server does not say."""
    validator = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
    return {"validator": validator, "size": _length(answer)} if validator and _length(answer) else None


def _read(note: Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(note.read_text(encoding="utf-8"))
    return None


def _kind(answer: Any) -> str:
    return answer.headers.get("Content-Type", "").split(";")[0] or "of no known kind"
