"""Fetch the raw files of the competition, check each, and seal them with their digests."""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import digest_of
from competition.config.errors import UserError
from competition.data.adapters import ADAPTERS
from competition.data.competition import Settings
from competition.kaggle import download, partial
from competition.storage import locations as storage
from pipelines.backend import start_tensorflow
from pipelines.cli import main
from pipelines.progress import ByteSteps
from pipelines.runner import Job, display_path, kaggle_client


def run(job: Job) -> None:
    """params -> raw/, raw.json; with --only: some files -> raw.only/"""
    if job.options.only:
        get_only(job, job.options.only)
        return
    how = job.params.prepare
    wanted = Settings(**asdict(job.params.competition), seed=how.seed, group_column=how.group_column)
    depends = {"competition": wanted.of_raw_files(), "source": source_digest(wanted.source)}
    job.cached("download", job.path("raw.json"), depends, lambda: get(job, wanted))


def get(job: Job, wanted: Settings) -> tuple[Iterable[Path], Mapping[str, Any]]:
    raw, archive = job.path("raw"), job.path("raw.archive")

    def fetch(slug: str, folder: Path) -> None:
        """From Kaggle. The archive stays until what is in it is in place, so a killed run need not fetch it again."""
        client, how = kaggle_client(job), job.params.kaggle
        with ByteSteps() as steps:
            unlisted = how.unlisted == "unpack"
            download.fetch(client, slug, folder, archive, how.unpack_ratio, steps.update, unlisted)

    if wanted.miniature or not (wanted.slug or wanted.source):
        start_tensorflow(job)  # what is made here goes into record files
    if attached := attached_input(job, wanted):
        wanted = replace(wanted, source=attached)
    # Everything unfinished is in this one folder. The caller holds a lock, so what is there was left by a killed run.
    unfinished = job.path(".raw.unfinished")
    for left in (*job.work.glob(".raw.*"), *job.work.glob("..raw.*")):  # earlier versions gave them random names
        shutil.rmtree(left, ignore_errors=True)
    (unfinished / "raw").mkdir(parents=True)
    try:
        ADAPTERS[wanted.adapter].download(unfinished / "raw", wanted, fetch)
        shutil.rmtree(raw, ignore_errors=True)
        (unfinished / "raw").rename(raw)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(archive, ignore_errors=True)
    files = sorted(path for path in raw.rglob("*") if path.is_file())
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    job.echo(f"download: {len(files):,} files, {megabytes:,.1f} MB in {display_path(raw)}")
    return files, {"files": len(files), "megabytes": round(megabytes, 1)}


def get_only(job: Job, pattern: str) -> None:
    """The files that `pattern` names, to look at. They are no part of raw/, which later stages need whole."""
    slug, folder, how = job.params.competition.slug, job.path("raw.only"), job.params.kaggle
    if not slug or job.params.competition.miniature:
        raise UserError(
            f"ONLY={pattern} fetches files from Kaggle, and {job.params.competition.name} does not come from there "
            "(competition.slug is empty, or it is a miniature): leave ONLY out"
        )
    with ByteSteps() as steps:
        files = partial.fetch_some(kaggle_client(job), slug, pattern, folder, how.unpack_ratio, steps.update)
    job.echo(
        f"download: {len(files):,} files, {sum(files.values()) / 1e6:,.1f} MB in {display_path(folder)}, to look at; the index, "
        "the folds and training need all files: `make download` without ONLY"
    )


def attached_input(job: Job, wanted: Settings) -> str:
    """In a Kaggle notebook: the folder of the attached competition, which needs no download. "" elsewhere."""
    if wanted.source or wanted.miniature or not wanted.slug:
        return ""
    if not storage.machine(os.environ, os.path.exists).startswith("kaggle"):
        return ""
    found = storage.find_inputs("sample_submission.csv")
    if found:
        job.echo(f"download: {found[0]} is attached to this notebook; nothing need be fetched")
    return found[0] if found else ""


def source_digest(source: str) -> str:
    """Of names, sizes and times: enough to see that a local source changed, without reading gigabytes."""
    if not source:
        return ""
    path = Path(source)
    if not path.exists():
        raise UserError(f"competition.source: {source} was not found; expected a zip file or a directory")
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return digest_of([[p.as_posix(), p.stat().st_size, p.stat().st_mtime_ns] for p in files])


if __name__ == "__main__":
    main("download")
