"""A competition's files from Kaggle: preflight, one resumed and verified archive, unpacked as a whole."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from competition.artifacts.manifest import sha256, write_json
from competition.config.errors import UserError
from competition.kaggle import archive
from competition.kaggle.archive import ArchiveRefusal, Progress, Verified
from competition.kaggle.client import SITE, Client, KaggleError, ask, progress_of, slug_of

StepProgress = Callable[[str, int, int], None]  # (step, done, total): downloading, checking, unpacking; in bytes


@dataclass(frozen=True)
class State:
    """What Kaggle says about a competition."""

    slug: str
    title: str
    entered: bool  # rules accepted
    deadline: str  # ISO 8601, "" = none
    daily: int  # submissions a day
    metric: str
    kernels_only: bool  # submissions come from a kernel, not from a file
    closed: bool  # no submissions at all


@dataclass(frozen=True)
class Listing:
    files: dict[str, int]  # name -> bytes
    complete: bool  # False: Kaggle limited the rate before all pages were read


@dataclass(frozen=True)
class Downloaded:
    archive: Path
    verified: Verified
    fresh: bool  # False: it was here already, and whole


def state(client: Client, slug: str) -> State:
    return State(**ask(client, "competition", {"slug": slug}, slug))


def preflight(client: Client, slug: str) -> State:
    """The competition, once it is sure that this account may download it; every reason why not has its own sentence."""
    found = state(client, slug)
    if not found.entered:
        raise KaggleError(
            "rules",
            f"the rules of {slug} are not accepted yet: accept them at {SITE}/competitions/{slug}/rules, then run this "
            "again (only you can).",
        )
    return found


def fetch(
    client: Client,
    slug: str,
    folder: Path,
    cache: Path,
    max_ratio: float,
    progress: StepProgress | None = None,
    unlisted: bool = False,
) -> None:
    """Download and unpack a competition into the empty `folder`.

    cache: where the archive is kept between runs.  unlisted: also unpack what Kaggle's listing does not name.
    """
    slug = slug_of(slug)
    if _sealed(cache / f"{slug}.json", cache / f"{slug}.zip") is None:  # what is here and whole needs no Kaggle
        found = preflight(client, slug)
        until = f" until {found.deadline[:10]}" if found.deadline else ""
        client.say(f"Kaggle: {found.title}: rules accepted; {found.daily} submissions a day{until}")
    done = download(client, slug, cache, max_ratio, progress, unlisted)
    for note in done.verified.notes:
        client.say(f"Kaggle: {note}")
    archive.extract(done.archive, folder, max_ratio, step(progress, "unpacking"), done.verified.files)


def download(
    client: Client,
    slug: str,
    folder: Path,
    max_ratio: float,
    progress: StepProgress | None = None,
    unlisted: bool = False,
) -> Downloaded:
    """<folder>/<slug>.zip, verified against Kaggle's listing; <slug>.json beside it, written last, means "whole".

    An archive that is whole is not downloaded again; a part of one is resumed; a damaged one is thrown away once and
    downloaded afresh, and what is still wrong then is left as <slug>.corrupt for a person to look at.
    """
    with sole(slug, folder):
        return _download(client, slug, folder, max_ratio, progress, unlisted)


@contextmanager
def sole(slug: str, folder: Path) -> Iterator[None]:
    """Only one process downloads into `folder`, which is made; the lock of a dead process does not count."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / f".{slug}.lock", timeout=0):
            yield
    except Timeout:
        raise UserError(
            f"{slug} is being downloaded by another process into {folder}: wait for it, or stop it."
        ) from None


def step(progress: StepProgress | None, name: str) -> Progress | None:
    """The progress of one step."""
    return None if progress is None else lambda done, total: progress(name, done, total)


def listing(client: Client, slug: str) -> Listing:
    return Listing(**ask(client, "listing", {"slug": slug}, slug))


def _download(
    client: Client, slug: str, folder: Path, max_ratio: float, progress: StepProgress | None, unlisted: bool
) -> Downloaded:
    target, seal, parts = folder / f"{slug}.zip", folder / f"{slug}.json", folder / f".{slug}.parts"
    if (known := _sealed(seal, target)) is not None:
        return Downloaded(target, known, fresh=False)
    seal.unlink(missing_ok=True)
    target.unlink(missing_ok=True)
    listed = listing(client, slug)
    if not listed.complete:
        client.say(f"Kaggle: its listing ended after {len(listed.files)} files (too many requests)")
    refuse_without_space(slug, 2 * sum(listed.files.values()), folder)  # archive and files lie side by side
    parts.mkdir(exist_ok=True)
    arguments = {"slug": slug, "folder": str(parts)}
    for last in (False, True):
        came = Path(ask(client, "download", arguments, slug, progress_of(step(progress, "downloading"))))
        only_listed = listed.complete and not unlisted
        try:
            verified = archive.verify(came, listed.files, max_ratio, step(progress, "checking"), only_listed)
        except ArchiveRefusal as user_error:
            if last:
                kept = folder / f"{slug}.corrupt"
                came.replace(kept)
                raise KaggleError(
                    "damaged",
                    f"the archive of {slug} was downloaded twice, and the second one {user_error.reason}: it is kept as "
                    f"{kept}; run this again to download it once more.",
                ) from user_error
            client.say(f"Kaggle: the archive of {slug} {user_error.reason}; downloading it afresh")
            came.unlink()
            continue
        came.replace(target)
        shutil.rmtree(parts, ignore_errors=True)
        write_json(seal, asdict(verified))
        return Downloaded(target, verified, fresh=True)
    raise AssertionError("the second round returns or raises")


def _sealed(seal: Path, target: Path) -> Verified | None:
    """What is known of an archive that is here and whole: its digest is taken anew."""
    try:
        known = Verified(**json.loads(seal.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return known if target.is_file() and sha256(target) == known.sha256 else None


def refuse_without_space(what: str, needed: int, folder: Path) -> None:
    """UserError when fewer than `needed` bytes are free in `folder`."""
    if (short := needed - shutil.disk_usage(folder).free) > 0:
        raise KaggleError("disk", f"{what} needs {short / 1e9:.1f} GB more than are free in {folder}: make room first.")
