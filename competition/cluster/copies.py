"""Data and checkpoints in a folder that all machines reach: a shared folder, or gs://."""

import posixpath
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from competition.config.errors import UserError
from competition.files.manifest import sha256
from competition.storage import bucket


def publish_data(shared: str, files: Mapping[str, tuple[str, Path]]) -> int:
    """Copy the data there, unless it has them; return the number of copied files.  files: see project.data_files."""
    existing = set(bucket.names(shared))
    manifests = [name for name in files if posixpath.basename(name) == bucket.LAST]
    for name in manifests:  # equal manifests: the data were copied completely before
        if name in existing and bucket.read_bytes(f"{shared}/{name}") == files[name][1].read_bytes():
            return 0
    for name, (_, path) in sorted(files.items(), key=lambda item: (item[0] in manifests, item[0])):
        bucket.write_bytes(f"{shared}/{name}", path.read_bytes())
    return len(files)


def fetch_data(shared: str, work: Path, files: Mapping[str, str]) -> None:
    """Copy missing data to work/ of this machine, once for all processes.  files: path below work/ -> sha256."""
    work.mkdir(parents=True, exist_ok=True)
    with FileLock(work / "data.lock"):
        for name, digest in files.items():
            path = work / name
            if path.is_file() and sha256(path) == digest:
                continue
            bucket.write_bytes(path.as_posix(), bucket.read_bytes(f"{shared}/{name}"))
            if sha256(path) != digest:
                raise UserError(f"{shared}/{name} is not what its manifest says; `make bucket FORCE=1` copies it again")


def publish_checkpoints(folder: Path, remote: str) -> None:
    """Make the remote folder equal to the checkpoints in `folder`: arrays first, the JSON file that completes them last."""
    local = {path.name for path in folder.glob("step-*")}
    existing = set(bucket.names(remote))
    for suffix in (".npz", ".json"):
        bucket.copy_files(folder.as_posix(), remote, sorted(n for n in local - existing if n.endswith(suffix)))
    bucket.remove_files(remote, sorted(existing - local))


def fetch_checkpoints(remote: str, folder: Path) -> bool:
    """Copy the checkpoints of another machine, if this one has none. Return True if there were any."""
    if any(folder.glob("step-*.json")):
        return False
    names = bucket.names(remote)
    bucket.copy_files(remote, folder.as_posix(), names)
    return any(name.endswith(".json") for name in names)


def remove_checkpoints(remote: str) -> None:
    bucket.remove_files(remote, bucket.names(remote))
