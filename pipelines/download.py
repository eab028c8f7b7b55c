"""Fetch the raw files of the competition, check each, and seal them with their digests."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from competition.data.adapters import ADAPTERS
from competition.data.competition import Settings
from competition.errors import Refusal
from competition.manifest import digest_of
from pipelines.stage import Job, main, shown, start_tensorflow


def settings(job: Job) -> Settings:
    return Settings(**asdict(job.params.competition), seed=job.params.prepare.seed)


def run(job: Job) -> None:
    """params -> raw/, raw.json"""
    wanted = settings(job)
    adapter = ADAPTERS[wanted.adapter]
    raw = job.path("raw")

    def fetch(slug: str, folder: Path) -> None:
        raise Refusal(
            f"{slug} must be fetched from Kaggle by hand for now: unpack it into a folder and set competition.source"
        )

    def make() -> tuple[Iterable[Path], Mapping[str, Any]]:
        start_tensorflow(job)  # some adapters write record files
        temporary = Path(tempfile.mkdtemp(prefix=".raw.", dir=job.work))
        try:
            adapter.download(temporary, wanted, fetch)
            shutil.rmtree(raw, ignore_errors=True)
            temporary.rename(raw)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        files = sorted(path for path in raw.rglob("*") if path.is_file())
        megabytes = sum(path.stat().st_size for path in files) / 1e6
        job.say(f"download: {len(files):,} files, {megabytes:,.1f} MB in {shown(raw)}")
        return files, {"files": len(files), "megabytes": round(megabytes, 1)}

    job.piece("download", job.path("raw.json"), {"competition": wanted, "source": source_digest(wanted.source)}, make)


def source_digest(source: str) -> str:
    """Of names, sizes and times: enough to see that a local source changed, without reading gigabytes."""
    if not source:
        return ""
    path = Path(source)
    if not path.exists():
        raise Refusal(f"competition.source: {source} was not found; expected a zip file or a directory")
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return digest_of([[p.as_posix(), p.stat().st_size, p.stat().st_mtime_ns] for p in files])


if __name__ == "__main__":
    main(run)
