"""Some files of a large competition, to look at: one by one from Kaggle, without the rest."""

import json
import shutil
import zipfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from competition.artifacts.manifest import sha256, write_json
from competition.config.errors import UserError
from competition.kaggle import archive
from competition.kaggle.archive import ArchiveRefusal
from competition.kaggle.client import Client, KaggleError, ask, progress_of, slug_of
from competition.kaggle.download import StepProgress, listing, preflight, refuse_without_space, sole, step

MANY = 100  # files: about so many single downloads end in a rate limit


def matching(files: Mapping[str, int], pattern: str) -> dict[str, int]:
    """Files that `pattern` names: a file, a folder (with or without a slash at its end), or names with * and ?."""
    folder = pattern.rstrip("/") + "/"
    return {
        name: size
        for name, size in files.items()
        if name == pattern or name.startswith(folder) or fnmatchcase(name, pattern)
    }


def fetch_some(
    client: Client, slug: str, pattern: str, folder: Path, max_ratio: float, progress: StepProgress | None = None
) -> dict[str, int]:
    """Download what `pattern` names below `folder`; name -> bytes of it. What is here and whole is not asked for again.

    Every file has the size that Kaggle lists, and the MD5 that the storage sends, where it sends one. `.files.json` in
    `folder`, written last, has their SHA-256.
    """
    slug = slug_of(slug)
    with sole(slug, folder):
        preflight(client, slug)
        listed = listing(client, slug)
        wanted = matching(listed.files, pattern)
        if not wanted:
            first = ", ".join(list(listed.files)[:3]) or "none"
            rest = "" if listed.complete else " before it limited the rate of requests"
            raise UserError(
                f"ONLY={pattern} names none of the {len(listed.files):,} files that Kaggle lists for {slug}{rest} "
                f"(the first: {first}): give a file, a folder or a pattern such as 'train/*.csv'."
            )
        if unsafe := [name for name in wanted if name.startswith("/") or ".." in name.split("/") or "\\" in name]:
            raise UserError(f"Kaggle lists {unsafe[0]!r}, a name that leaves the folder: nothing was downloaded.")
        seal = folder / ".files.json"
        digests = _digests(seal)
        for name, size in wanted.items():
            path = folder / name
            if path.is_file() and (path.stat().st_size != size or (name in digests and digests[name] != sha256(path))):
                path.unlink()
        missing = {name: size for name, size in wanted.items() if not (folder / name).is_file()}
        if len(missing) > MANY:
            client.say(
                f"Kaggle: {len(missing):,} files one by one; it limits how often it may be asked, so `make download` "
                "without ONLY, one archive, may be faster"
            )
        refuse_without_space(f"ONLY={pattern}", sum(missing.values()), folder)
        if missing:
            arguments = {"slug": slug, "folder": str(folder), "files": missing}
            ask(client, "download_files", arguments, slug, progress_of(step(progress, "downloading")))
        for name, size in missing.items():
            _check(folder / name, size, max_ratio)
        write_json(seal, {**digests, **{name: sha256(folder / name) for name in wanted}})
    return wanted


def _check(path: Path, size: int, max_ratio: float) -> None:
    """UserError if a file that came has not its listed size. Kaggle sends some files as a zip of one: it is unpacked."""
    if path.stat().st_size != size and zipfile.is_zipfile(path):
        packed, folder = path.rename(path.with_name(f"{path.name}.packed")), path.with_name(f".{path.name}.new")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            archive.verify(packed, {path.name: size}, max_ratio)
            archive.extract(packed, folder, max_ratio, names=[path.name])
            (folder / path.name).replace(path)
            folder.rmdir()
        except ArchiveRefusal as user_error:
            sentence = f"{path.name} came as an archive that {user_error.reason}: run this again."
            raise KaggleError("damaged", sentence) from user_error
        finally:
            packed.unlink()
    elif path.stat().st_size != size:
        here = path.stat().st_size
        path.unlink()
        raise KaggleError("damaged", f"{path.name} came with {here} of {size} listed bytes: run this again.")


def _digests(seal: Path) -> dict[str, str]:
    try:
        return dict(json.loads(seal.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
