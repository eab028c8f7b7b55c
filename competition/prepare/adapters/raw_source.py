"""Sources of raw files: a directory or a zip on this machine, or Kaggle."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from competition.config.errors import UserError
from competition.kaggle import archive
from competition.prepare.adapter_types import Settings


def fetch_source(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Fill the empty folder `raw` from `source`, or by `fetch` of `slug` if there is no source."""
    if not settings.source:
        if not settings.slug:
            raise UserError("competition.source and competition.slug are both empty; state a folder, a zip or a slug")
        fetch(settings.slug, raw)
        return
    source = Path(os.path.expanduser(settings.source))
    if source.is_dir():
        shutil.copytree(source, raw, dirs_exist_ok=True, copy_function=_link_or_copy)
    elif source.suffix.lower() == ".zip" and source.is_file():
        archive.extract(source, raw)
    else:
        raise UserError(f"competition.source: {source} was found, a directory or a .zip file expected")


def _link_or_copy(source: str, target: str) -> None:
    """Create a hard link, because raw files are only read; copy the file if it is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
