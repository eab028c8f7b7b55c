"""Where raw files come from when they are not made: a directory or a zip on this machine, or Kaggle."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from competition.config.errors import UserError
from competition.data.competition import Settings
from competition.kaggle import archive

MAX_RATIO = 200  # unpacked to packed: images hardly shrink, so far less than this is already odd


def fetch_source(raw: Path, settings: Settings, fetch: Callable[[str, Path], None]) -> None:
    """Fill `raw`, an empty folder, from `source`, or by `fetch` of `slug` when there is none."""
    if not settings.source:
        if not settings.slug:
            raise UserError(
                f"competition.source and competition.slug are both empty: the {settings.adapter} adapter needs "
                "a directory or a zip, or the name of a Kaggle competition"
            )
        fetch(settings.slug, raw)
        return
    source = Path(settings.source).expanduser()
    if source.is_dir():
        shutil.copytree(source, raw, dirs_exist_ok=True, copy_function=_link_or_copy)
    elif source.suffix.lower() == ".zip" and source.is_file():
        archive.extract(source, raw, MAX_RATIO)
    else:
        raise UserError(f"competition.source: {source} was found, a directory or a .zip file expected")


def _link_or_copy(source: str, target: str) -> None:
    """Raw files are only read, so a second name is as good as a copy and costs no disk; across disks it must be one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
