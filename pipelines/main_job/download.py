"""Download the raw files of the competition, verify each and record their digests."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from rich import filesize

from competition.config.digests import digest_of
from competition.config.errors import UserError, counted, similar_name_beside
from competition.config.faults import fault_point
from competition.config.params import HUB
from competition.config.params_file import locate
from competition.kaggle import download
from competition.prepare.adapter_types import SAMPLE, Settings, settings_of
from competition.prepare.adapters import adapter_named
from competition.storage import locations as storage
from pipelines.terminal.job import Computed, Job, kaggle_client
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar


def run(job: Job) -> None:
    """params -> raw/, raw.json"""
    require_named_files(job)
    settings = settings_of(job.params)
    depends = {"competition": settings.of_raw_files(), "source": source_digest(job, settings.source)}
    depends |= job.params.plugins.dependencies(ADAPTERS=(settings.adapter,))
    job.cached("download", job.path("raw.json"), depends, lambda _: download_all(job, settings))


def require_named_files(job: Job) -> None:
    """Raise UserError for weights and external images that are not there: training would miss them hours later."""
    for name, member in job.params.members.items():
        weights = member.weights
        is_named = weights in ("none", "imagenet") or "://" in weights or weights.startswith(HUB)
        if not is_named and not Path(weights).exists():
            expected = "none, imagenet, a weights file or the folder of a KerasHub preset"
            raise UserError(f"members.{name}.weights: {weights} does not exist; expected {expected}")
    for name, folder in job.params.prepare.external.items():
        if not Path(folder).is_dir():
            raise UserError(f"prepare.external.{name}: {folder} is not a folder; expected one subfolder per class")


def download_all(job: Job, settings: Settings) -> Computed:
    raw, archive = job.path("raw"), job.path("raw.archive")
    adapter = adapter_named(settings.adapter, job.params.plugins)

    def fetch(slug: str, folder: Path) -> None:
        """Download from Kaggle. The archive is kept until it is unpacked, so that a killed run need not repeat the download."""
        client = kaggle_client(job)
        with Bar(None, "", "B") as bar:
            download.fetch(client, slug, folder, archive, bar.update_step)

    if attached := attached_input(job, settings):
        settings = replace(settings, source=attached)
    # All unfinished work is in this folder. The caller holds a lock, so existing content is from a killed run.
    unfinished = job.path(".raw.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "raw").mkdir(parents=True)
    try:
        adapter.download(unfinished / "raw", settings, fetch)
        shutil.rmtree(raw, ignore_errors=True)
        fault_point("download.before_rename", raw)
        (unfinished / "raw").rename(raw)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(archive, ignore_errors=True)
    # Texts, not paths, until they are sorted: with 100,000 small files it counts.
    names = sorted(f"{folder}/{name}" for folder, _, names in os.walk(raw) for name in names)
    size = sum(os.stat(name).st_size for name in names)  # noqa: PTH116
    files = list(map(Path, names))
    # An adapter may have written it in place of the source, which then has one file less.
    has_sample = f"{raw}/{SAMPLE}" in names
    count = f"{counted(len(files) - has_sample, 'file')}{f' and {SAMPLE}' * has_sample}"
    job.echo(f"download: {count}, {filesize.decimal(size)} in {display_path(raw)}")
    return files, {"files": len(files), "megabytes": round(size / 1e6, 1)}


def attached_input(job: Job, settings: Settings) -> str:
    """Folder of the competition that is attached to this Kaggle notebook; "" = none, or not in a Kaggle notebook."""
    if settings.source or settings.miniature or not settings.slug:
        return ""
    if not storage.machine(os.environ, os.path.exists).startswith("kaggle"):
        return ""
    folders = storage.find_inputs("sample_submission.csv")
    if folders:
        job.echo(f"download: {folders[0]} is attached to this notebook; no download needed")
    return folders[0] if folders else ""


def source_digest(job: Job, source: str) -> str:
    """Digest of names, sizes and modification times: detects changes of a local source without reading it."""
    if not source:
        return ""
    path = Path(os.path.expanduser(source))
    if not path.exists():
        place = locate(job.options.params, ("competition", "source"), job.workspace.overrides)
        similar = similar_name_beside(path, ".zip")
        raise UserError(f"{place}: {source} was not found; expected a zip file or a directory{similar}")
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return digest_of([[p.as_posix(), p.stat().st_size, p.stat().st_mtime_ns] for p in files])
