"""A competition's files from Kaggle: preflight, one resumed and verified archive, unpacked as a whole."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from competition.errors import Refusal
from competition.manifest import sha256, write_json
from competition.remote import archive
from competition.remote.archive import Progress, Verified
from competition.remote.kaggle_client import SITE, Client, KaggleRefusal, ask, progress_of, slug_of


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
        raise KaggleRefusal(
            "rules",
            f"the rules of {slug} are not accepted yet: accept them at {SITE}/competitions/{slug}/rules, then run this "
            "again (only you can).",
        )
    return found


def fetch(
    client: Client, slug: str, folder: Path, cache: Path, max_ratio: float, progress: Progress | None = None
) -> None:
    """Download and unpack a competition into the empty `folder`. cache: where the archive is kept between runs."""
    slug = slug_of(slug)
    if _sealed(cache / f"{slug}.json", cache / f"{slug}.zip") is None:  # what is here and whole needs no Kaggle
        found = preflight(client, slug)
        until = f" until {found.deadline[:10]}" if found.deadline else ""
        client.say(f"Kaggle: {found.title}: rules accepted; {found.daily} submissions a day{until}")
    done = download(client, slug, cache, max_ratio, progress)
    archive.extract(done.archive, folder, max_ratio, progress)


def download(client: Client, slug: str, folder: Path, max_ratio: float, progress: Progress | None = None) -> Downloaded:
    """<folder>/<slug>.zip, verified against Kaggle's listing; <slug>.json beside it, written last, means "whole".

    An archive that is whole is not downloaded again; a part of one is resumed; a damaged one is thrown away once and
    downloaded afresh, and what is still wrong then is left as <slug>.corrupt for a person to look at.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / f".{slug}.lock", timeout=0):
            return _download(client, slug, folder, max_ratio, progress)
    except Timeout:
        raise Refusal(
            f"{slug} is being downloaded by another process into {folder}: wait for it, or stop it."
        ) from None


def _download(client: Client, slug: str, folder: Path, max_ratio: float, progress: Progress | None) -> Downloaded:
    target, seal, parts = folder / f"{slug}.zip", folder / f"{slug}.json", folder / f".{slug}.parts"
    if (known := _sealed(seal, target)) is not None:
        return Downloaded(target, known, fresh=False)
    seal.unlink(missing_ok=True)
    target.unlink(missing_ok=True)
    listing = ask(client, "listing", {"slug": slug}, slug)
    if short := missing_space(listing, folder):
        raise KaggleRefusal(
            "disk", f"{slug} needs {short / 1e9:.1f} GB more than are free in {folder}: make room first."
        )
    parts.mkdir(exist_ok=True)
    for last in (False, True):
        came = _ask_for_it(client, slug, parts, last, sum(listing.values()), progress)
        try:
            verified = archive.verify(came, listing, max_ratio, progress)
        except Refusal as refusal:
            if last:
                came.replace(folder / f"{slug}.corrupt")
                shutil.rmtree(parts, ignore_errors=True)
                raise KaggleRefusal("damaged", f"{refusal} What came twice is kept as {slug}.corrupt.") from refusal
            client.say(f"Kaggle: {refusal} Downloading it afresh")
            shutil.rmtree(parts, ignore_errors=True)
            continue
        came.replace(target)
        shutil.rmtree(parts, ignore_errors=True)
        write_json(seal, {"sha256": verified.sha256, "files": verified.files, "notes": verified.notes})
        return Downloaded(target, verified, fresh=True)
    raise AssertionError("the second round returns or raises")


def _ask_for_it(client: Client, slug: str, parts: Path, force: bool, total: int, progress: Progress | None) -> Path:
    """What the client brought. A part that can be resumed stays in `parts`; a login page does not."""
    arguments = {"slug": slug, "folder": str(parts), "force": force}
    try:
        return Path(ask(client, "download", arguments, slug, progress_of(progress, total)))
    except KaggleRefusal as refusal:
        if refusal.kind == "page":
            shutil.rmtree(parts, ignore_errors=True)
        raise


def _sealed(seal: Path, target: Path) -> Verified | None:
    """What is known of an archive that is here and whole: its digest is taken anew."""
    try:
        known = Verified(**json.loads(seal.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return known if target.is_file() and sha256(target) == known.sha256 else None


def missing_space(listing: Mapping[str, int], folder: Path) -> int:
    """Bytes that archive and files, side by side, need beyond what is free in `folder`; 0 when there is room."""
    return max(0, 2 * sum(listing.values()) - shutil.disk_usage(folder).free)
