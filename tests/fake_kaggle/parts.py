"""Data of the fake Kaggle server: a competition, a version of a kernel, responses other than JSON."""

import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builders import params

STORAGE = "http://storage.test"
SIGNATURE = "X-Goog-Signature=planted5ignature0f0link"  # must never appear in any output
LOGIN_PAGE = b"<!DOCTYPE html><html><title>Kaggle: Log in</title></html>"

# A small competition, and short timeouts.
FILES = {
    "sample_submission.csv": b"id,label\na,0\nb,0\n",
    "train/01.tfrec": bytes(range(256)) * 3000,
    "test/01.tfrec": bytes(reversed(range(256))) * 3000,
}
QUICK = replace(params().kaggle, max_attempts=3, first_wait=0.05, longest_wait=3.0, stall=8.0)


@dataclass
class Contest:
    files: Mapping[str, bytes | memoryview]
    title: str = "Flowers"
    entered: bool = True
    daily: int = 5
    kernels_only: bool = False
    closed: bool = False
    leaderboard: tuple[tuple[str, str], ...] = ()  # (team, score), best first
    archive: bytes | memoryview = b""
    # bytes of a csv -> (status, public, private, error)
    score: Callable[[bytes], tuple[str, str, str, str]] = lambda data: ("COMPLETE", "0.9", "", "")

    def __post_init__(self) -> None:
        self.archive = self.archive or zip_of(self.files)


@dataclass
class Run:
    request: dict[str, Any]
    folder: Path
    status: str = "QUEUED"
    failure: str = ""
    log: list[str] = field(default_factory=list)
    unlisted: int = 0  # the number of requests for the kernel that do not show this version yet


def zip_of(files: Mapping[str, bytes | memoryview]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


class Http(Exception):
    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}):
        super().__init__(message)
        self.status, self.headers = status, headers
