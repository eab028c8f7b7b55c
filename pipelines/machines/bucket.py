"""Synchronise data, studies, fold models and predictions with storage.bucket."""

import posixpath
import re
import shutil
from collections.abc import Iterable, Sequence

from competition.config.errors import UserError
from competition.files.manifest import damaged_files, intact_manifest, read_manifest
from competition.files.replacement import AGAIN, REPLACED
from competition.storage import files
from competition.storage.files import MANIFEST
from competition.training.backend import start_tensorflow
from pipelines.terminal.job import Job, bucket_of
from pipelines.terminal.progress import Bar

SYNCHRONISED = ("data/", "tune/", "members/")  # below work/<competition>; everything else is recomputed in minutes
RECORDS = "data/records/"  # never downloaded: training reads records from the bucket, so a machine may lack them
BEING_REPLACED = re.compile(rf"members/[^/]+/[^/]+/({AGAIN}|{REPLACED})/")


def run(job: Job) -> None:
    """work/<competition> <-> storage.bucket/<competition>, one result (a folder with a manifest) at a time"""
    if not job.params.storage.bucket:
        raise UserError('storage.bucket is empty: name one, e.g. SET="storage.bucket=gs://NAME/FOLDER"')
    start_tensorflow()
    bucket, names_here = bucket_of(job), local_names(job)
    names_there = [name for name in files.names(bucket) if name.startswith(SYNCHRONISED)]
    results = {posixpath.dirname(name) for name in names_here + names_there if posixpath.basename(name) == MANIFEST}
    local, remote = files_of_results(names_here, results), files_of_results(names_there, results)
    sent, received, differing = [], [], []
    with Bar(len(results), "bucket", "results") as bar:
        for result in sorted(results, key=lambda name: (name.count("/"), name)):
            bar.update()
            manifest, is_remote = job.path(result, MANIFEST), MANIFEST in remote[result]
            if not is_complete(job, result):  # missing, unfinished or damaged on this machine
                if is_remote:
                    download(job, result, remote[result])
                    received.append(result)
                continue
            is_equal = is_remote and files.read_bytes(f"{bucket}/{result}/{MANIFEST}") == manifest.read_bytes()
            if is_remote and not job.options.force:
                differing += [] if is_equal else [result]
            elif intact_manifest(manifest):
                upload(job, result, local[result], remote[result])
                sent.append(result)
            elif not is_equal:
                remedy = "`make download` makes them"
                job.echo(f"bucket: {result} was not uploaded: its records are missing or damaged here; {remedy}")
    job.echo(f"bucket: {len(sent)} results uploaded to {bucket}, {len(received)} downloaded")
    if differing:
        job.echo(
            f"bucket: {len(differing)} results differ and were left unchanged on both sides ({', '.join(differing[:3])}); "
            "FORCE=1 uploads those of this machine"
        )


def local_names(job: Job) -> list[str]:
    """The files to synchronise, relative to work/<competition>: no locks, and no fold models that are being replaced."""
    paths = (path for top in SYNCHRONISED for path in job.path(top).rglob("[!.]*") if path.is_file())
    names = (path.relative_to(job.work).as_posix() for path in paths if path.suffix != ".lock")
    return sorted(name for name in names if not BEING_REPLACED.match(name))


def files_of_results(names: Iterable[str], results: Iterable[str]) -> dict[str, list[str]]:
    """Result -> its files, relative to it. A file belongs to the deepest result above it."""
    files_by_result: dict[str, list[str]] = {result: [] for result in results}
    for name in names:
        result = posixpath.dirname(name)
        while result and result not in files_by_result:
            result = posixpath.dirname(result)
        if result:
            files_by_result[result].append(name[len(result) + 1 :])
    return files_by_result


def is_complete(job: Job, result: str) -> bool:
    """Return True if the files of the local result are those of its manifest, whatever is with the records."""
    path = job.path(result, MANIFEST)
    manifest = read_manifest(path)
    return manifest is not None and all(
        f"{result}/{name}".startswith(RECORDS) for name in damaged_files(path, manifest)
    )


def download(job: Job, result: str, remote_names: Sequence[str]) -> None:
    """Copy a result of the bucket to this machine. Local records that are not those of the data are removed."""
    folder, manifest = f"{bucket_of(job)}/{result}", job.path(result, MANIFEST)
    names = [name for name in remote_names if not f"{result}/{name}".startswith(RECORDS)]
    files.copy_files(folder, job.path(result).as_posix(), names)
    if not is_complete(job, result):
        manifest.unlink(missing_ok=True)
        raise UserError(f"{folder} is not what its manifest says; compute it here and run `make bucket FORCE=1`")
    if not intact_manifest(manifest):
        shutil.rmtree(job.path(RECORDS), ignore_errors=True)


def upload(job: Job, result: str, local_names: Sequence[str], remote_names: Sequence[str]) -> None:
    """Copy a local result to the bucket, in the place of whatever is there.

    The manifest there is removed first and written last, so that a killed upload never looks complete. Other files that the
    local result lacks are removed as well: training reads all records that it finds.
    """
    folder = f"{bucket_of(job)}/{result}"
    replaced = {MANIFEST}.intersection(remote_names) | {*remote_names} - {*local_names}
    for name in sorted(replaced, key=lambda name: (name != MANIFEST, name)):
        files.remove(f"{folder}/{name}")
    files.copy_files(job.path(result).as_posix(), folder, local_names)
