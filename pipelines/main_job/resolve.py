"""Choose where this machine reads records from, and check that they are readable."""

import os
from functools import partial
from pathlib import Path

from competition.config.errors import UserError
from competition.files.manifest import write_json
from competition.prepare.index import has_images
from competition.storage import locations as storage
from pipelines.terminal.job import Computed, Job, bucket_of
from pipelines.terminal.output import display_path


def run(job: Job) -> None:
    """data/, storage.bucket, what this machine is -> resolve.json: path, reason, machine"""
    if not has_images(job.prepared.index):
        job.echo("resolve: no records to read, because the rows have no images")
        return
    data = job.workspace.require(job.path("data", "manifest.json"))
    depends = {"data": data.digest, "device": job.params.device, "bucket": job.params.storage.bucket}
    depends["machine"] = storage.machine(os.environ, os.path.exists)
    job.cached("resolve", job.path("resolve.manifest.json"), depends, partial(choose, job))


def choose(job: Job, folder: Path) -> Computed:
    """Write resolve.json to `folder`: the place of the records, after a look at it."""
    local, settings, slug = job.path("data", "records"), job.params.storage, job.params.competition.slug
    bucket = f"{bucket_of(job)}/data/records" if settings.bucket else ""
    place = storage.choose_location(os.environ, os.path.exists, storage.kaggle_gcs_path, str(local), bucket, slug)
    try:
        entries = storage.try_place(place.path, os.environ, settings.seconds)
    except UserError as user_error:
        anew = "`make download FORCE=1` makes them anew"
        remedy = "`make bucket` copies the records there" if settings.bucket else anew
        raise UserError(f"{str(user_error).rstrip('.')}; {remedy}") from None
    path = place.path if "://" in place.path else display_path(local)
    choice = {"path": path, "reason": place.reason, "machine": place.machine}
    write_json(folder / "resolve.json", choice)
    if "://" in place.path or job.options.verbose:  # a local folder is where everybody expects it
        job.echo(f"resolve: {path}: {place.reason}; {entries}")
    return [folder / "resolve.json"], choice
