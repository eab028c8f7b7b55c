"""Download single files of a large competition, for inspection."""

import shutil
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

from competition.config.errors import UserError, first_few
from competition.files.locks import exclusive
from competition.kaggle import archive
from competition.kaggle.answers import is_safe_path
from competition.kaggle.archive import ArchiveRefusal, require_disk_space
from competition.kaggle.client import Client, ask, competition_slug
from competition.kaggle.download import StepProgress, require_access
from competition.kaggle.errors import KaggleError


def fetch_some(client: Client, slug: str, pattern: str, folder: Path, progress: StepProgress) -> dict[str, int]:
    """Download the files selected by `pattern` below `folder`; return name -> bytes on disk. Complete files are skipped.

    pattern: a file, a folder (with or without a trailing slash), or names with * and ?.
    Checks the size that Kaggle lists and the MD5 of the storage, if it sends one.
    """
    slug = competition_slug(slug)
    with exclusive(folder / f".{slug}.lock", f"download of {slug}"):
        require_access(client, slug)
        listing = ask(client, "listing", {"slug": slug}, slug)  # see child.listing
        inside = pattern.rstrip("/") + "/"
        selected = {
            name: size
            for name, size in listing["files"].items()
            if name == pattern or name.startswith(inside) or fnmatchcase(name, pattern)
        }
        if not selected:
            incomplete = "" if listing["complete"] else "; its listing is incomplete"
            raise UserError(
                f"ONLY={pattern} matches none of the files that Kaggle lists for {slug}{incomplete} "
                f"({first_few(listing['files'])}): expected a file, a folder or a pattern such as 'train/*.csv'."
            )
        if unsafe := [name for name in selected if not is_safe_path(name)]:
            raise UserError(f"Kaggle lists {unsafe[0]!r}, a name that leaves the folder: nothing was downloaded.")
        missing = {}
        for name, size in selected.items():
            path = folder / name
            if not path.is_file() or size not in (None, path.stat().st_size):
                path.unlink(missing_ok=True)
                missing[name] = size
        require_disk_space(f"ONLY={pattern}", sum(size or 0 for size in missing.values()), folder)
        if missing:
            arguments = {"slug": slug, "folder": str(folder), "files": missing}
            on_event = lambda event: progress("downloading", event["done"], event["total"])  # noqa: E731
            ask(client, "download_files", arguments, slug, on_event)
        for name, size in missing.items():
            if size is not None:
                _check(folder / name, size)
    return {name: (folder / name).stat().st_size for name in selected}


def _check(path: Path, size: int) -> None:
    """KaggleError if a downloaded file does not have its listed size. Unpacks a file that Kaggle sent as a zip."""
    if path.stat().st_size != size and zipfile.is_zipfile(path):
        packed, folder = path.rename(path.with_name(f"{path.name}.packed")), path.with_name(f".{path.name}.new")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            archive.extract(packed, folder, {path.name: size})
            (folder / path.name).replace(path)
            shutil.rmtree(folder)
        except ArchiveRefusal as error:
            sentence = f"{path.name} was sent as an archive that {error.reason}: run this again."
            raise KaggleError("damaged", sentence) from error
        finally:
            packed.unlink()
    elif path.stat().st_size != size:
        received = path.stat().st_size
        path.unlink()
        raise KaggleError("damaged", f"{path.name} has {received} of {size} listed bytes: run this again.")
