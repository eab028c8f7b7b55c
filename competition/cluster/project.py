"""What every machine of the cluster gets: the source of the project, its parameters and files, and which data it needs."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from competition.config.params import Member, Params
from competition.config.params_file import file_tree
from competition.config.secrets import without_secrets
from competition.files.manifest import Manifest, sha256
from competition.kernels.packing import PLUGINS, SOURCE_PATTERNS, own_files, project_files, project_path

PARAMS = "cluster-params.json"  # JSON is YAML


def packed_project(
    root: Path, params: Params, members: Mapping[str, Member], is_tuning: bool = False
) -> tuple[bytes, str]:
    """(zip, its sha256) of source, parameters, plugins and local files of weights.

    root: folder of the project.  members: with overrides and tuned values applied, so that no machine needs a study.
    is_tuning: with the files that a study reads.  Raises UserError for files outside the project's folder.
    """
    plugins = {PLUGINS: Path(params.plugins).read_bytes()} if params.plugins else {}
    text = json.dumps(file_tree(machine_params(params, members)), indent=1)
    folders = own_files(replace(params, prepare=replace(params.prepare, external={})), members)
    weights = [file for files in folders.values() for file in files]
    local = {file.as_posix(): file.read_bytes() for file in [*weights, *(study_files(params) if is_tuning else [])]}
    files = {**project_files(root, SOURCE_PATTERNS), **plugins, **local, PARAMS: text.encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, data in sorted(files.items()):
            writer.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest()


def machine_params(params: Params, members: Mapping[str, Member]) -> Params:
    """Parameters for the machines: without secrets and without paths of this one."""
    params = without_secrets(params)
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


def study_files(params: Params) -> list[Path]:
    """Local files that a study reads: warm starts, and the weights that it searches.

    Their paths are part of the study's name. Raises UserError for a path outside the project's folder.
    """
    weights = params.tune.search["weights"].choices if "weights" in params.tune.search else ()
    keys = dict.fromkeys(params.tune.warm_start, "tune.warm_start")
    keys |= dict.fromkeys(map(str, weights), "tune.search.weights")
    paths = [Path(project_path(entry, key)) for entry, key in keys.items() if Path(entry).exists()]
    return [file for path in paths for file in [path, *sorted(path.rglob("*"))] if file.is_file()]


def data_files(work: Path, data: Manifest, is_remote: bool) -> dict[str, tuple[str, Path]]:
    """Path below work/ -> (sha256, local file) of the prepared data.

    work: work/<competition>.  data: manifest of data/.  is_remote: records are read from gs:// and not sent.
    """
    files = {name: digest for name, digest in data.files.items() if not (is_remote and name.startswith("records/"))}
    manifest = work / "data" / "manifest.json"
    paths = {name: (digest, work / "data" / name) for name, digest in files.items()}
    paths["manifest.json"] = (sha256(manifest), manifest)
    return {f"{work.name}/data/{name}": entry for name, entry in paths.items()}
