"""Synchronise data, studies, fold models and predictions with storage.bucket."""

import posixpath
from collections import defaultdict

from competition.config.errors import UserError
from competition.files.manifest import files_intact, read_manifest
from competition.files.replacement import AGAIN, REPLACED
from competition.storage import files
from competition.training.backend import start_tensorflow
from pipelines.terminal.progress import Bar
from pipelines.terminal.runner import Job, bucket_of

SYNCHRONISED = ("data/", "tune/", "members/")  # below work/<competition>; everything else is recomputed in minutes
REMOTE_ONLY = "data/records/"  # never downloaded: training reads records from the bucket


def run(job: Job) -> None:
    """work/<competition> <-> storage.bucket/<competition>, one result (a folder with a manifest) at a time"""
    if not job.params.storage.bucket:
        raise UserError('storage.bucket is empty: name one, e.g. SET="storage.bucket=gs://NAME/FOLDER"')
    start_tensorflow()
    paths = (path for top in SYNCHRONISED for path in job.path(top).rglob("[!.]*") if path.is_file())
    names = (path.relative_to(job.work).as_posix() for path in paths if path.suffix != ".lock")
    own_names = sorted(
        name for name in names if not (name.startswith("members/") and name.split("/")[3:4] in ([AGAIN], [REPLACED]))
    )
    remote, local = results_of(files.names(bucket_of(job))), results_of(own_names)
    sent, received, differing = [], [], []
    units = sorted({**local, **remote}, key=lambda name: (name.count("/"), name))
    with Bar(len(units), "bucket", "results") as bar:
        for unit in units:
            bar.update()
            if not is_complete(job, unit):  # missing, unfinished or damaged on this machine
                if unit in remote:
                    wanted_names = [name for name in remote[unit] if not f"{unit}/{name}".startswith(REMOTE_ONLY)]
                    files.copy_files(f"{bucket_of(job)}/{unit}", job.path(unit).as_posix(), wanted_names)
                    if not is_complete(job, unit):
                        job.path(unit, files.LAST).unlink(missing_ok=True)
                        raise UserError(
                            f"{bucket_of(job)}/{unit} is not what its manifest says; compute it here and run `make bucket FORCE=1`"
                        )
                    received.append(unit)
            elif unit not in remote or job.options.force:
                files.copy_files(job.path(unit).as_posix(), f"{bucket_of(job)}/{unit}", local[unit])
                sent.append(unit)
            elif files.read_bytes(f"{bucket_of(job)}/{unit}/{files.LAST}") != job.path(unit, files.LAST).read_bytes():
                differing.append(unit)
    job.echo(f"bucket: {len(sent)} results uploaded to {bucket_of(job)}, {len(received)} downloaded")
    if differing:
        job.echo(
            f"bucket: {len(differing)} results differ and were left unchanged on both sides ({', '.join(differing[:3])}); "
            "FORCE=1 uploads those of this machine"
        )


def results_of(names: list[str]) -> dict[str, list[str]]:
    """Group files by result: folder with a manifest -> its files. A file belongs to the deepest such folder above it."""
    result_folders = {posixpath.dirname(name) for name in names if posixpath.basename(name) == files.LAST}
    files_by_folder: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folder = posixpath.dirname(name)
        while folder and folder not in result_folders:
            folder = posixpath.dirname(folder)
        if folder and name.startswith(SYNCHRONISED):
            files_by_folder[folder].append(name[len(folder) + 1 :])
    return dict(files_by_folder)


def is_complete(job: Job, unit: str) -> bool:
    """Return True if the local result matches its manifest; records may be in the bucket only."""
    manifest = job.path(unit, files.LAST)
    result = read_manifest(manifest)
    if result is None:
        return False
    if unit == "data" and not job.path(REMOTE_ONLY).exists():
        names = [name for name in result.files if not f"data/{name}".startswith(REMOTE_ONLY)]
        return all(job.path(unit, name).is_file() for name in names)
    return files_intact(manifest, result)
