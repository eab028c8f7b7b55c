"""What the stand-in for Kaggle is made of: a competition, a version of a kernel, an answer that is no JSON."""

import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STORAGE = "http://storage.test"
SIGNATURE = "X-Goog-Signature=planted5ignature0f0link"  # must never be seen anywhere
LOGIN_PAGE = b"<!DOCTYPE html><html><title>Kaggle: Log in</title></html>"


@dataclass
class Contest:
    files: dict[str, bytes]
    title: str = "Flowers"
    entered: bool = True
    daily: int = 5
    kernels_only: bool = False
    closed: bool = False
    leaderboard: tuple[tuple[str, str], ...] = ()  # (team, score), best first
    user_rank: int = 0  # 0 = Kaggle does not tell
    listed: dict[str, int] | None = None  # another listing than the true one
    archive: bytes = b""
    # bytes of a csv -> (status, public, private, error)
    score: Callable[[bytes], tuple[str, str, str, str]] = lambda data: ("COMPLETE", "0.9", "", "")

    sent_as_zip: tuple[str, ...] = ()  # files that come as a zip of one when asked for alone

    def sent(self, name: str) -> bytes:
        data = self.files[name]
        return zip_of({name.rsplit("/", 1)[-1]: data}) if name in self.sent_as_zip else data

    def __post_init__(self) -> None:
        self.archive = self.archive or zip_of(self.files)


@dataclass
class Run:
    """One version of a kernel."""

    request: dict[str, Any]
    folder: Path
    status: str = "QUEUED"
    failure: str = ""
    log: list[str] = field(default_factory=list)
    polls: int = 0
    unlisted: int = 0  # so many looks at the kernel do not show this version yet


def zip_of(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in files.items():
            zipped.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


class Http(Exception):
    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}):
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclass
class Redirect:
    url: str
