"""What every machine of the cluster gets: the source of the project, its parameters, and the files that it reads."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from competition.config.digests import digest_of
from competition.config.params import Member, Params
from competition.files.manifest import Manifest, sha256
from competition.kernels.packing import referenced_files, sent_params, source_files

PARAMS = "cluster-params.json"  # JSON is YAML


def write_project(folder: Path, root: Path, params: Params, members: Mapping[str, Member]) -> None:
    """Write the source, the parameters and the plugins to a folder, which Ray brings to the machines.

    root: folder of the project.  members: with overrides and tuned values applied, so that no machine needs a study.
    """
    sent = sent_params(params, members)
    sent = replace(sent, tune=replace(sent.tune, members=()))
    for name, data in source_files(root, sent, PARAMS).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def local_files(params: Params, members: Mapping[str, Member], is_tuning: bool) -> dict[str, Path]:
    """Relative path -> local file of what training reads besides the prepared data, see `referenced_files`.

    A process on a machine starts in the folder of these files, because their paths are parameters.
    Raises UserError for files outside the project's folder.
    """
    prepare = replace(params.prepare, external={})  # their images are in the prepared data
    folders = referenced_files(replace(params, prepare=prepare), members, is_tuning)
    return {file.as_posix(): file for files in folders.values() for file in files}


def files_to_send(
    work: Path, data: Manifest, is_remote: bool, local: Mapping[str, Path]
) -> tuple[dict[str, tuple[str, Path]], str]:
    """Path below the folder of a machine -> (sha256, local file), and the name of the folder of the local files there.

    work: work/<competition>.  data: manifest of data/.  is_remote: records are read from gs:// and not sent.
    local: see local_files.
    """
    sent = {name: digest for name, digest in data.files.items() if not (is_remote and name.startswith("records/"))}
    files = {f"{work.name}/data/{name}": (digest, work / "data" / name) for name, digest in sent.items()}
    manifest = work / "data" / "manifest.json"
    files[f"{work.name}/data/manifest.json"] = (sha256(manifest), manifest)
    digests = {name: sha256(path) for name, path in local.items()}
    folder = f"files-{digest_of(digests)[:12]}"
    files |= {f"{folder}/{name}": (digests[name], path) for name, path in local.items()}
    return files, folder
