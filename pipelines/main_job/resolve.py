"""Choose where this machine reads records from, and check that they are readable."""

import os

from competition.config.errors import UserError
from competition.files.manifest import Stored, write_json
from competition.storage import locations as storage
from pipelines.terminal.output import display_path
from pipelines.terminal.runner import Job, bucket_of


def run(job: Job) -> None:
    """data/, storage.bucket, what this machine is -> resolve.json: path, reason, machine"""
    data = job.workspace.require(job.path("data", "manifest.json"))
    local, settings = job.path("data", "records"), job.params.storage
    depends = {"data": data.digest, "device": job.params.device, "bucket": settings.bucket}
    depends["machine"] = storage.machine(os.environ, os.path.exists)
    with job.computing("resolve", Stored(job.path("resolve.manifest.json"), depends)) as result:
        if not result.is_due:
            return
        slug = job.params.competition.slug
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
        write_json(job.path("resolve.json"), choice)
        echo = job.echo if "://" in place.path else job.echo_detail  # a local folder is where everybody expects it
        echo(f"resolve: {path}: {place.reason}; {entries}")
        result.output = [job.path("resolve.json")], choice
