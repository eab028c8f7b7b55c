"""Keep data, studies, fold models and their predictions in storage.bucket, and bring what is there and not here."""

import posixpath
from collections import defaultdict

from competition.artifacts.manifest import files_intact, read_manifest
from competition.config.errors import UserError
from competition.storage import bucket
from pipelines.backend import start_tensorflow
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, bucket_of

KEPT = ("data/", "tune/", "members/")  # results below work/<competition>; everything else is made again in minutes
STAYS = "data/records/"  # never brought back: training reads records where they are


def run(job: Job) -> None:
    """work/<competition> <-> storage.bucket/<competition>, one sealed result (a folder with a manifest) at a time"""
    if not job.params.storage.bucket:
        raise UserError('storage.bucket is empty: name one, e.g. SET="storage.bucket=gs://NAME/FOLDER"')
    start_tensorflow(job)
    there, here = sealed(bucket.names(bucket_of(job))), sealed(local_names(job))
    sent, brought, differing = [], [], []
    units = sorted({**here, **there}, key=lambda name: (name.count("/"), name))
    with progress_bar(len(units), "bucket") as bar:
        for unit in units:
            bar.update()
            if not whole(job, unit):  # not here, unfinished or damaged: what is there replaces it
                if unit in there:
                    bring(job, unit, there[unit])
                    brought.append(unit)
            elif unit not in there or job.options.force:
                bucket.copy_files(job.path(unit).as_posix(), f"{bucket_of(job)}/{unit}", here[unit])
                sent.append(unit)
            elif (
                bucket.read_bytes(f"{bucket_of(job)}/{unit}/{bucket.LAST}") != job.path(unit, bucket.LAST).read_bytes()
            ):
                differing.append(unit)
    job.echo(f"bucket: {len(sent)} results sent to {bucket_of(job)}, {len(brought)} brought from there")
    if differing:
        job.echo(
            f"bucket: {len(differing)} results differ and stayed as they are on both sides ({', '.join(differing[:3])}); "
            "FORCE=1 sends those of this machine"
        )


def local_names(job: Job) -> list[str]:
    files = (path for top in KEPT for path in job.path(top).rglob("*") if path.is_file())
    names = [path.relative_to(job.work).as_posix() for path in files]
    return sorted(n for n in names if not n.endswith(".lock") and not posixpath.basename(n).startswith("."))


def sealed(names: list[str]) -> dict[str, list[str]]:
    """Folder with a manifest -> its files; a file belongs to the deepest such folder above it."""
    tops = {posixpath.dirname(name) for name in names if posixpath.basename(name) == bucket.LAST}
    units: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folder = posixpath.dirname(name)
        while folder and folder not in tops:
            folder = posixpath.dirname(folder)
        if folder and name.startswith(KEPT):
            units[folder].append(name[len(folder) + 1 :])
    return dict(units)


def whole(job: Job, unit: str) -> bool:
    """Sealed here, and as the manifest says; records may be in the bucket alone."""
    manifest = job.path(unit, bucket.LAST)
    made = read_manifest(manifest)
    if made is None:
        return False
    if unit == "data" and not job.path(STAYS).exists():
        return all((job.path(unit) / name).is_file() for name in made.files if not f"data/{name}".startswith(STAYS))
    return files_intact(manifest, made)


def bring(job: Job, unit: str, names: list[str]) -> None:
    wanted = [name for name in names if not f"{unit}/{name}".startswith(STAYS)]
    bucket.copy_files(f"{bucket_of(job)}/{unit}", job.path(unit).as_posix(), wanted)
    if not whole(job, unit):
        job.path(unit, bucket.LAST).unlink(missing_ok=True)
        raise UserError(
            f"{bucket_of(job)}/{unit} is not what its manifest says; make it here and run `make bucket FORCE=1`"
        )


if __name__ == "__main__":
    main("bucket")
