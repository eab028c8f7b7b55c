"""Pack the project for a Kaggle kernel: source code, parameters without local paths, requirements and a plan.

The result is one file: kernel_script.py with the plan and an archive of the project. Larger files (results to resume
from, images, weights) are packed for a private dataset.
"""

import base64
import hashlib
import io
import json
import lzma
import re
import shlex
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from competition.config.errors import UserError
from competition.config.params import FROM_FILE, HUB, Member, Params
from competition.config.params_file import file_tree
from competition.config.secrets import without_secrets
from competition.files.manifest import write_json
from competition.kernels import kernel_script

MAX_KERNEL_CHARACTERS = 1_000_000  # of source, which Kaggle accepts in one kernel
SOURCE_PATTERNS = ("competition/**/*.py", "competition/**/*.csv", "competition/**/*.yaml", "pipelines/**/*.py")
NO_PATH = re.compile(rf"(none|imagenet)?$|{HUB}|\w+://")  # what names no local file
PARAMS = "kernel-params.json"  # JSON is YAML
PLUGINS = "kernel-plugins.py"  # the user's plugins file, beside PARAMS
# Modules that the stages in the kernel import -> package; the minimum versions are in pyproject.toml. Protobuf is not among them:
# the image's TensorFlow brings it, and works with versions near its own only.
SAME_NAME = ("filelock", "keras", "numpy", "optuna", "pandas", "pydantic", "rich", "ruamel.yaml", "scipy", "typer")
NEEDS = {name: name for name in SAME_NAME} | {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "tensorflow": "tensorflow-cpu",
    "threadpoolctl": "threadpoolctl",
}


@dataclass(frozen=True)
class Plan:
    """Work of one kernel."""

    run: str  # name of the run, repeated in the kernel's output
    # Arguments of `python`, run in the project's root; "{input:NAME}" stands for the input folder that holds NAME.
    commands: tuple[tuple[str, ...], ...]
    collect: tuple[str, ...]  # patterns of result folders, relative to the project's root
    copy_out: Mapping[str, str]  # name in the outputs -> pattern of the one file that is copied there
    needs: Mapping[str, str]  # module -> requirement, installed if it is missing
    # Package -> version that preflight verified for its TPU: jax, jaxlib, libtpu; {} = the image's.
    jax: Mapping[str, str]
    accelerator: str  # "tpu", "gpu", or "" = any
    devices: int  # minimum number of them
    seconds: int  # limit of Kaggle's session
    grace: int  # seconds of it that are reserved for stopping and packing


def source_files(root: Path, sent: Params, name: str = PARAMS) -> dict[str, bytes]:
    """Name -> content of the source code, the plugins file and the parameters, for another machine.

    sent: see `sent_params`.  name: of the file of the parameters.
    """
    paths = sorted(path for pattern in SOURCE_PATTERNS for path in root.glob(pattern))
    source = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    if sent.plugins.file:  # beside the parameters, because the path of the plugins begins in their folder
        source[PLUGINS] = sent.plugins.source.encode()
    return {**source, name: json.dumps(file_tree(sent), indent=1).encode()}


def requirements(pyproject: str, members: Iterable[Member] = ()) -> dict[str, str]:
    """Module -> requirement, from the text of pyproject.toml; optional packages only if one of `members` needs them.

    Not for the networks of the portfolio: a budget leaves out those whose package the machine lacks.
    """
    project, needs = tomllib.loads(pyproject)["project"], dict(NEEDS)
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["cpu"], *extras["hub"], *extras["albumentations"]]
    by_package = {re.split(r"[<>=!~\[ ]", line, maxsplit=1)[0].lower(): line for line in lines}
    for member in members:
        if needs_keras_hub(member):
            needs["keras_hub"] = "keras-hub"
        if member.train.albumentations:
            needs["albumentations"] = "albumentations"
    return {module: by_package[package] for module, package in needs.items()}


def needs_keras_hub(member: Member) -> bool:
    """Return True if the network of a member is a KerasHub preset, or a local .keras file with layers of KerasHub."""
    file = Path(member.weights)
    if member.architecture != FROM_FILE or file.suffix != ".keras":
        return member.architecture == FROM_FILE
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return "config.json" in archive.namelist() and b"keras_hub" in archive.read("config.json")


def sent_params(params: Params, members: Mapping[str, Member]) -> Params:
    """Parameters for another machine: without secrets, local paths and external predictions.

    members: with overrides and tuned values applied.
    """
    params = without_secrets(params)
    return replace(
        params,
        plugins=replace(params.plugins, file=Path(PLUGINS)) if params.plugins.file else params.plugins,
        members=dict(members),
        external={},
        blend=replace(params.blend, members=()),  # stored runs are not there; it predicts with all members
        competition=replace(params.competition, source=""),
        cache=replace(params.cache, folder=""),
        convert=replace(params.convert, source="", target=""),
    )


def kernel_params(params: Params, members: Mapping[str, Member]) -> Params:
    """Parameters for the kernel, which also has no bucket and its own device."""
    require: Any = "tpu" if accelerator(params.kernel.machine) == "tpu" else "any"
    device, storage = replace(params.device, backend="auto", require=require), replace(params.storage, bucket="")
    sent = replace(sent_params(params, members), device=device, storage=storage)
    # A notebook submission is blended there, of the members that blend.members names.
    return replace(sent, blend=params.blend) if params.kaggle.submit == "notebook" else sent


def accelerator(machine: str) -> str:
    """ "tpu", "gpu" or "" for Kaggle's name of a machine (TpuV5E8, NvidiaTeslaT4, ...)."""
    kinds = {"tpu": "tpu", "nvi": "gpu"}
    return kinds.get(machine.lower()[:3], "")


def referenced_files(params: Params, members: Mapping[str, Member], is_tuning: bool) -> dict[str, list[Path]]:
    """Folder -> local files that training reads: external images, initial weights, and pipelines of Albumentations.

    is_tuning: also the weights that a study searches.
    Their paths are parameters and therefore part of a fold model's digest: the kernel must have them at the same paths.
    UserError for a path outside the project's folder.
    """
    stated = [(f"members.{name}.weights", member.weights) for name, member in members.items()]
    stated += [
        (f"members.{name}.train.albumentations", member.train.albumentations) for name, member in members.items()
    ]
    if is_tuning and "weights" in params.tune.search:
        stated += [("tune.search.weights", str(choice)) for choice in params.tune.search["weights"].choices]
    external = [(f"prepare.external.{name}", folder) for name, folder in params.prepare.external.items()]
    folders: dict[str, list[Path]] = {}
    for key, entry in (*external, *((key, entry) for key, entry in stated if not NO_PATH.match(entry))):
        path = Path(project_path(entry, key))
        if path.is_dir():  # of images, or a KerasHub preset
            folders[path.as_posix()] = [file for file in sorted(path.rglob("*")) if file.is_file()]
        elif path.is_file():
            files = folders.setdefault(path.parent.as_posix(), [])
            files += {path} - {*files}
        else:
            raise UserError(f"{key}: {entry} was not found; expected a file, or a folder of images or a preset")
    return folders


def project_path(path: str, key: str) -> str:
    """Path relative to the project's folder; UserError, naming the parameter `key`, if it is outside."""
    if Path(path).is_absolute() or ".." in Path(path).parts or path.startswith("~"):
        raise UserError(
            f"{key}: {path} is outside the project's folder, which other machines do not have; put it (or a link to it) "
            "below the project's folder, and use its relative path"
        )
    return Path(path).as_posix()


def commands(
    overrides: Sequence[str],
    work: str,
    folds_from: str,
    training: Mapping[str, Sequence[int]],
    members_to_tune: Sequence[str],
    last_stages: Sequence[Sequence[str]],
) -> tuple[tuple[str, ...], ...]:
    """Stages of one kernel, as arguments of `python`.

    overrides: KEY=VALUE.  folds_from: index whose groups and folds are copied.  training: member -> folds.
    members_to_tune: those of its members that are tuned first.  last_stages: after training, each with its options.
    """

    def stage(name: str, *options: str) -> tuple[str, ...]:
        alone = ("--alone",) if name in ("download", "train", "predict") else ()
        common = ("--params", PARAMS, "--work", work, "--set", shlex.join(overrides))
        return ("-m", "pipelines", name, *alone, *common, *options)

    train = [
        stage(verb, "--member", name, "--fold", ",".join(map(str, folds)))
        for name, folds in training.items()
        for verb in (("tune", "train") if name in members_to_tune else ("train",))
    ]
    prepare = [stage("download"), stage("prepare", "--folds-from", folds_from), stage("resolve")]
    return (*prepare, *train, *(stage(*each) for each in last_stages))


def pack(files: Mapping[str, bytes], plan: Plan) -> str:
    """Source of the kernel: kernel_script.py with the plan and the packed files."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_STORED) as writer:
        for name, data in files.items():
            writer.writestr(zipfile.ZipInfo(name), data)
    # Compressing all files as one stream gives two thirds of the size of a deflated zip.
    data = lzma.compress(zipped.getvalue(), preset=9)
    plan_values = {**asdict(plan), "project": hashlib.sha256(data).hexdigest()}
    coded = re.sub("(.{100})", r'\1"\n    "', base64.b85encode(data).decode())
    text = Path(kernel_script.__file__).read_text(encoding="utf-8")
    text = text.replace("PLAN: dict[str, Any] = {}", f"PLAN: dict[str, Any] = json.loads({json.dumps(plan_values)!r})")
    text = text.replace('PROJECT = ""', f'PROJECT = (\n    "{coded}"\n)')
    if len(text) > MAX_KERNEL_CHARACTERS:
        raise UserError(
            f"the packed project has {len(text):,} characters, Kaggle accepts {MAX_KERNEL_CHARACTERS:,}: leave large files out, and "
            "attach them as a dataset."
        )
    return text


def notebook(text: str) -> str:
    """Convert the packed file to an .ipynb, for notebook competitions and for use in the browser."""
    import jupytext

    cells = jupytext.reads(text, fmt="py:percent")
    cells.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = json.loads(jupytext.writes(cells, fmt="ipynb"))
    for cell in content["cells"]:  # Kaggle expects the source of a cell as one text, not as lines
        cell["source"] = "".join(cell["source"])
    return json.dumps(content, indent=1)


def carry(result_folders: Mapping[str, tuple[Path, Sequence[Path]]], folder: Path) -> list[Path]:
    """Pack results for the kernel to resume from; return the archives and, last, the file that lists them.

    result_folders: path in the kernel, relative to the project's root -> local folder and its files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archives = [
        kernel_script.write_archive(name, base, list(files), folder)
        for name, (base, files) in result_folders.items()
        if files
    ]
    about = {"run": "carried", "status": "done", "problem": "", "devices": "", "seconds": 0, "archives": archives}
    write_json(folder / kernel_script.OUTPUT, about)
    return [*(folder / archive["file"] for archive in archives), folder / kernel_script.OUTPUT]
