"""What every machine of the cluster gets: the source of the project, its parameters and files, and which data it needs."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from competition.artifacts.manifest import Manifest, sha256
from competition.config.params import Member, Params
from competition.config.params_file import file_tree
from competition.kernels.packing import PLUGINS, SOURCE_PATTERNS, own_files, project_files

PARAMS = "cluster-params.json"  # JSON is YAML


def packed_project(root: Path, params: Params, members: Mapping[str, Member]) -> tuple[bytes, str]:
    """(zip, its sha256) of source, parameters, plugins and local files of weights.

    root: folder of the project.  members: with overrides and tuned values applied, so that no machine needs a study.
    Raises UserError for weights outside the project's folder.
    """
    plugins = {PLUGINS: Path(params.plugins).read_bytes()} if params.plugins else {}
    text = json.dumps(file_tree(machine_params(params, members)), indent=1)
    folders = own_files(replace(params, prepare=replace(params.prepare, external={})), members)
    weights = {file.as_posix(): file.read_bytes() for files in folders.values() for file in files}
    files = {**project_files(root, SOURCE_PATTERNS), **plugins, **weights, PARAMS: text.encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, data in sorted(files.items()):
            writer.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest()


def machine_params(params: Params, members: Mapping[str, Member]) -> Params:
    """Parameters for the machines: without paths of this one."""
    return replace(
        params,
        plugins=PLUGINS if params.plugins else "",
        members=dict(members),
        foreign={},
        tune=replace(params.tune, members=()),
        blend=replace(params.blend, members=()),
        cache=replace(params.cache, folder=""),
        competition=replace(params.competition, source=""),
        convert=replace(params.convert, source="", target=""),
    )


def data_files(work: Path, data: Manifest, is_remote: bool) -> dict[str, tuple[str, Path]]:
    """Path below work/ -> (sha256, local file) of the prepared data.

    work: work/<competition>.  data: manifest of data/.  is_remote: records are read from gs:// and not sent.
    """
    files = {name: digest for name, digest in data.files.items() if not (is_remote and name.startswith("records/"))}
    manifest = work / "data" / "manifest.json"
    paths = {**{name: (digest, work / "data" / name) for name, digest in files.items()}}
    paths["manifest.json"] = (sha256(manifest), manifest)
    return {f"{work.name}/data/{name}": entry for name, entry in paths.items()}
