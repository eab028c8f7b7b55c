"""Download a competition's files: check access, download one archive, unpack it in the pass that verifies it.

Retries of requests, and of an interrupted download, are decided in client.py (`ask`, errors.RETRYABLE); the
download is resumed in child_download.py (`save`); archive.py verifies and unpacks it. Decided here: an archive that fails
verification is downloaded once more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from competition.config.errors import counted
from competition.files.locks import exclusive
from competition.kaggle import answers, archive, credentials
from competition.kaggle.archive import ArchiveRefusal, NamesCredential
from competition.kaggle.client import Client, ask, call, competition_slug
from competition.kaggle.errors import SENTENCES, SITE, KaggleError

StepProgress = Callable[[str, int, int], None]  # (step, done, total): downloading, unpacking; in bytes


@dataclass(frozen=True)
class State:
    """A competition as described by Kaggle."""

    summary: str  # for the user
    entered: bool | None  # rules accepted; None = Kaggle does not say, here and below
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
    deadline = answers.utc_time(about.get("deadline"))[:10]
    until = f" until {deadline}" if deadline else ""
    summary = f"{answers.text(about.get('title')) or slug}: {rules}{a_day}{until}"
    return State(summary, entered, kernels_only, closed)


def fetch(
    client: Client,
    slug: str,
    folder: Path,
    cache: Path,
    progress: StepProgress = lambda step, done, total: None,
) -> None:
    """Download <cache>/<slug>.zip and unpack it into the empty `folder`, in the pass that compares its checksums.

    cache: folder that keeps the archive between runs.
    A complete archive is used without a request to Kaggle, and a partial one is resumed. An archive that is refused is
    removed and downloaded once more.
    """
    slug = competition_slug(slug)
    file = cache / f"{slug}.zip"
    on_event = lambda event: progress("downloading", event["done"], event["total"])  # noqa: E731
    with exclusive(cache / f".{slug}.lock", f"download of {slug}"):
        for is_last_attempt in (False, True):
            if not file.exists():
                client.print_line(f"Kaggle: {require_access(client, slug).summary}")
                ask(client, "download", {"slug": slug, "folder": str(cache)}, slug, on_event)
            try:
                secrets = credentials.find_credential(client.environment).secrets
                archive.extract(file, folder, secrets, partial(progress, "unpacking"))
                return
            except NamesCredential:
                file.unlink()
                raise
            except ArchiveRefusal as error:
                file.unlink()
                if is_last_attempt:
                    sentence = f"the archive of {slug} {error.reason}, after a second download: run this again."
                    raise KaggleError("damaged", sentence) from error
                client.print_line(f"Kaggle: the archive of {slug} {error.reason}; downloading it again")
