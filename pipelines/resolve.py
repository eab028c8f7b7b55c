"""Say where the records are for the device in use, and why, after looking that they are really there."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import write_json
from competition.config.errors import UserError
from competition.storage import locations as storage
from pipelines.cli import main
from pipelines.runner import Job, bucket_of, display_path


def run(job: Job) -> None:
    """data/, storage.bucket, what this machine is -> resolve.json: path, reason, machine"""
    data = job.require(job.path("data", "manifest.json"), "download")
    local, how = job.path("data", "records"), job.params.storage

    def make() -> tuple[Iterable[Path], Mapping[str, Any]]:
        place = storage.decide(
            os.environ,
            os.path.exists,
            str(local),
            f"{bucket_of(job)}/data/records" if how.bucket else "",
            job.params.competition.slug,
            lambda: storage.kaggle_gcs_path(job.params.competition.slug),
            list,  # what Kaggle attaches are raw files; the records made of them are on the machine's disk
        )
        try:
            tried = storage.try_place(place.path, os.environ, how.seconds)
        except UserError as user_error:
            mend = "`make bucket` copies the records there" if how.bucket else "`make download FORCE=1` makes them anew"
            raise UserError(f"{str(user_error).rstrip('.')}; {mend}") from None
        path = place.path if "://" in place.path else display_path(local)
        found = {"path": path, "reason": place.reason, "machine": place.machine}
        write_json(job.path("resolve.json"), found)
        job.echo(f"resolve: {path}: {place.reason}; {tried.files} entries, read in {tried.seconds:.1f} s")
        return [job.path("resolve.json")], found

    depends = {"data": data.digest, "device": job.params.device, "bucket": how.bucket}
    depends["machine"] = storage.machine(os.environ, os.path.exists)
    job.cached("resolve", job.path("resolve.manifest.json"), depends, make)


if __name__ == "__main__":
    main("resolve")
