"""Download a competition's files: check access, download one archive, verify it, unpack it.

Retries of requests, and of an interrupted download, are decided in client.py (`ask`, errors.RETRYABLE); the
download is resumed in child_download.py (`save`); archive.py verifies and unpacks it. Decided here
(`_download`): an archive that fails verification is downloaded once more.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from competition.config.errors import counted
from competition.files.locks import exclusive
from competition.files.manifest import read_record, sha256, write_json
from competition.kaggle import answers, archive, credentials
from competition.kaggle.archive import ArchiveRefusal, NamesCredential, require_disk_space
from competition.kaggle.client import Client, ask, call, competition_slug
from competition.kaggle.errors import SENTENCES, SITE, KaggleError

StepProgress = Callable[[str, int, int], None]  # (step, done, total): downloading, unpacking; in bytes


@dataclass(frozen=True)
class State:
    """A competition as described by Kaggle."""

    summary: str  # for the user
    entered: bool | None  # rules accepted; None = Kaggle does not say, here and below
    deadline: str  # ISO 8601, UTC; "" = none
    kernels_only: bool | None  # submissions are accepted from kernels only, not as files
    closed: bool | None  # no submissions are accepted


def require_access(client: Client, slug: str) -> State:
    """Return the competition's state; KaggleError if this account may not download its files."""
    about = call(client, slug, "competitions", "GetCompetition", competitionName=slug)
    flags = (about.get(field) for field in ("userHasEntered", "isKernelsSubmissionsOnly", "submissionsDisabled"))
    entered, kernels_only, closed = (value if isinstance(value, bool) else None for value in flags)
    if entered is False:
        raise KaggleError("rules", SENTENCES["rules"].format(slug=slug, site=SITE))
    rules = "rules accepted" if entered else "Kaggle does not say whether the rules are accepted"
    daily = answers.whole(about.get("maxDailySubmissions"))
    a_day = "" if daily is None else f"; {counted(daily, 'submission')} a day"
    summary = f"{answers.text(about.get('title')) or slug}: {rules}{a_day}"
    return State(summary, entered, answers.utc_time(about.get("deadline")), kernels_only, closed)


def fetch(
    client: Client,
    slug: str,
    folder: Path,
    cache: Path,
    progress: StepProgress = lambda step, done, total: None,
) -> None:
    """Download <cache>/<slug>.zip and unpack it into the empty `folder`, in the pass that verifies it against Kaggle's listing.

    cache: folder that keeps the archive between runs. <slug>.json in it is written last.
    A complete archive is used without a request to Kaggle, and a partial one is resumed. An archive that is refused is
    removed and downloaded once more.
    """
    slug = competition_slug(slug)
    with exclusive(cache / f".{slug}.lock", f"download of {slug}"):
        record, file = cache / f"{slug}.json", cache / f"{slug}.zip"
        verified: dict[str, str] = read_record(record, dict) or {}
        if file.is_file() and sha256(file) == verified.get("sha256"):
            archive.extract(file, folder, progress=partial(progress, "unpacking"))
        else:
            _download(client, slug, folder, cache, progress)
            write_json(record, {"sha256": sha256(file)})


def _download(client: Client, slug: str, folder: Path, cache: Path, progress: StepProgress) -> None:
    """Download and unpack the archive, once more if it is refused, and move it to its place in `cache`."""
    competition = require_access(client, slug)
    until = f" until {competition.deadline[:10]}" if competition.deadline else ""
    client.print_line(f"Kaggle: {competition.summary}{until}")
    for earlier in (cache / f"{slug}.json", cache / f"{slug}.zip"):
        earlier.unlink(missing_ok=True)
    files = ask(client, "listing", {"slug": slug}, slug)["files"]  # see child.listing
    total = sum(size or 0 for size in files.values())
    require_disk_space(slug, 2 * total, cache)  # for the archive and the unpacked files
    secrets = credentials.find_credential(client.environment).secrets
    parts = cache / f".{slug}.parts"
    parts.mkdir(exist_ok=True)
    arguments = {"slug": slug, "folder": str(parts)}
    on_event = lambda event: progress("downloading", event["done"], event["total"])  # noqa: E731
    unverified = parts / f"{slug}.zip"  # exists if an earlier run was stopped while it was checked
    for is_last_attempt in (False, True):
        if not unverified.exists():
            ask(client, "download", arguments, slug, on_event)
        try:
            notes = archive.extract(unverified, folder, files, secrets, partial(progress, "unpacking"))
            break
        except NamesCredential:
            shutil.rmtree(parts)
            raise
        except ArchiveRefusal as error:
            unverified.unlink()
            if is_last_attempt:
                sentence = (
                    f"the archive of {slug} was downloaded twice, and the second one {error.reason}: run this again."
                )
                raise KaggleError("damaged", sentence) from error
            client.print_line(f"Kaggle: the archive of {slug} {error.reason}; downloading it again")
    unverified.replace(cache / f"{slug}.zip")
    shutil.rmtree(parts, ignore_errors=True)
    for note in notes:
        client.print_line(f"Kaggle: {note}")
