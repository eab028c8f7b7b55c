"""What travels to a kernel: the code of the stages, parameters that name nothing of this machine, requirements, a plan.

All of it becomes one file, kernel_script.py with a plan and a zip inside; what is too large for that (results to go on
from, images, weights) becomes packs for a private dataset.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import write_json
from competition.config.errors import UserError
from competition.config.params import Member, Params
from competition.config.params_file import file_tree
from competition.kernels import kernel_script

LARGEST = 1_000_000  # characters of source that Kaggle takes in one kernel
TRAVELS = ("competition/**/*.py", "pipelines/**/*.py")
PARAMS = "kernel-params.json"  # JSON is YAML
# What the stages that run there import, module -> package; pyproject.toml says which version at least.
NEEDS = {
    "filelock": "filelock",
    "keras": "keras",
    "numpy": "numpy",
    "optuna": "optuna",
    "pandas": "pandas",
    "PIL": "pillow",
    "pydantic": "pydantic",
    "ruamel.yaml": "ruamel.yaml",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "tensorflow": "tensorflow-cpu",
    "tqdm": "tqdm",
    "typer": "typer",
}


@dataclass(frozen=True)
class Plan:
    """What the kernel does. commands: arguments of `python`, run in the project's root; "{input:NAME}" in one becomes
    the folder among the inputs that holds NAME."""

    run: str  # names this run, in the kernel's output too
    commands: tuple[tuple[str, ...], ...]
    collect: tuple[str, ...]  # patterns of result folders, relative to the project's root
    leave: Mapping[str, str]  # name -> pattern of one file, which is left as it is among the outputs
    needs: Mapping[str, str]  # module -> requirement, installed when absent
    environment: Mapping[str, str]  # added for the commands
    accelerator: str  # "tpu", "gpu", or "" = whatever is there
    devices: int  # at least so many of them
    seconds: int  # of Kaggle's session limit
    grace: int  # of them, kept for stopping and packing


def files(root: Path, params: Params, members: Mapping[str, Member]) -> dict[str, bytes]:
    """Name -> content. members: as they are trained here, overrides and tuned values put in."""
    return {
        **project_files(root, TRAVELS),
        PARAMS: json.dumps(file_tree(there(params, members)), indent=1).encode(),
    }


def project_files(root: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    """The files of the project that travel, by name. patterns: as of Path.glob, e.g. "competition/**/*.py"."""
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    if not paths:
        raise UserError(f"{root} holds nothing that matches {', '.join(patterns)}: run this from the project's folder.")
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(paths)}


def requirements(pyproject: str) -> dict[str, str]:
    """Module -> requirement, from the text of pyproject.toml."""
    told = tomllib.loads(pyproject)["project"]
    lines = [*told["dependencies"], *told["optional-dependencies"]["cpu"]]
    asked = {re.split(r"[<>=!~\[ ]", line, maxsplit=1)[0].lower(): line for line in lines}
    return {module: asked[package] for module, package in NEEDS.items()}


def there(params: Params, members: Mapping[str, Member]) -> Params:
    """Parameters for Kaggle's machine."""
    require: Any = "tpu" if accelerator(params.kernel.machine) == "tpu" else "any"
    return replace(
        params,
        members=dict(members),
        foreign={},
        device=replace(params.device, backend="auto", require=require),
        storage=replace(params.storage, bucket=""),
        competition=replace(params.competition, source=""),
    )


def accelerator(machine: str) -> str:
    """tpu, gpu or "" for Kaggle's name of a machine (TpuV5E8, NvidiaTeslaT4, ...)."""
    kinds = {"tpu": "tpu", "nvi": "gpu"}
    return kinds.get(machine.lower()[:3], "")


def own_files(params: Params, members: Mapping[str, Member]) -> dict[str, list[Path]]:
    """Folder -> files of this machine that training reads: external images, starting weights.

    They are named in the parameters, which are part of what a fold model is made from: a kernel must find them under
    the same names, so only paths below the project's folder can travel. Raises UserError for the others.
    """
    found: dict[str, list[Path]] = {}
    for name, folder in params.prepare.external.items():
        place = _below(folder, f"prepare.external.{name}")
        found[place] = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    for name, member in members.items():
        if member.weights in ("none", "imagenet") or "://" in member.weights:
            continue
        _below(member.weights, f"members.{name}.weights")
        if not Path(member.weights).is_file():
            raise UserError(f"members.{name}.weights: {member.weights} was not found; expected a .weights.h5 file")
        files = found.setdefault(Path(member.weights).parent.as_posix(), [])
        files += [Path(member.weights)] if Path(member.weights) not in files else []
    return found


def _below(path: str, key: str) -> str:
    """A path as the kernel will have it, from the project's folder."""
    if Path(path).is_absolute() or ".." in Path(path).parts or path.startswith("~"):
        raise UserError(
            f"{key}: {path} is a place of this machine that a kernel does not have; put it (or a link to it) below the "
            "project's folder, and name it from there"
        )
    return Path(path).as_posix()


def commands(
    sets: Sequence[str], work: str, like: str, training: Mapping[str, Sequence[int]], tuning: Sequence[str], made: str
) -> tuple[tuple[str, ...], ...]:
    """The stages of one kernel, as arguments of `python`.

    like: the index whose groups and folds are taken over.  training: member -> folds.  tuning: members of these whose
    search comes first.  made: folder of submissions; "" = no blend, for fold models would lack.
    """

    def stage(name: str, *more: str) -> tuple[str, ...]:
        return ("-m", f"pipelines.{name}", "--params", PARAMS, "--work", work, "--set", shlex.join(sets), *more)

    trained = [
        stage(verb, "--member", name, "--fold", ",".join(map(str, folds)))
        for name, folds in training.items()
        for verb in (("tune", "train") if name in tuning else ("train",))
    ]
    before = [stage("download"), stage("prepare", "--like", like), stage("resolve")]
    blended = [stage("blend", "--submissions", made)] if made else []
    return (*before, *trained, stage("predict", "--allow-partial"), *blended)


def pack(files: Mapping[str, bytes], plan: Plan) -> str:
    """The kernel's one code file: kernel_script.py with the plan and the files inside."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_STORED) as writer:
        for name, data in files.items():
            writer.writestr(zipfile.ZipInfo(name), data)
    data = lzma.compress(
        zipped.getvalue(), preset=9
    )  # all files as one stream: two thirds of the size of a deflated zip
    told = {**asdict(plan), "project": hashlib.sha256(data).hexdigest()}
    coded = re.sub("(.{100})", r'\1"\n    "', base64.b85encode(data).decode())
    text = Path(kernel_script.__file__).read_text(encoding="utf-8")
    text = _replace(text, "PLAN: dict[str, Any] = {}", f"PLAN: dict[str, Any] = json.loads({json.dumps(told)!r})")
    text = _replace(text, 'PROJECT = ""', f'PROJECT = (\n    "{coded}"\n)')
    if len(text) > LARGEST:
        raise UserError(
            f"the packed project is {len(text):,} characters, Kaggle takes {LARGEST:,}: leave large files out, and "
            "attach them as a dataset."
        )
    return text


def notebook(text: str) -> str:
    """The packed file as an .ipynb: what a competition for notebooks wants, and a person who prefers the browser."""
    import jupytext

    cells = jupytext.reads(text, fmt="py:percent")
    cells.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return str(jupytext.writes(cells, fmt="ipynb"))


def carry(units: Mapping[str, tuple[Path, Sequence[Path]]], folder: Path) -> list[Path]:
    """Packs for the kernel to go on from (`kernels.share` them): the files, the list of them last.

    units: where it belongs, from the project's root there -> the folder here, and its files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = [kernel_script.pack(name, base, list(files), folder) for name, (base, files) in units.items() if files]
    about = {"run": "carried", "status": "done", "problem": "", "devices": "", "seconds": 0, "units": told}
    write_json(folder / kernel_script.OUTPUT, about)
    return [*(folder / unit["file"] for unit in told), folder / kernel_script.OUTPUT]


def whole_folder(folder: Path) -> tuple[Path, list[Path]]:
    """A folder for `carry`, with all its files but locks."""
    return folder, [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]


def _replace(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise AssertionError(f"{old!r} stands {text.count(old)} times in the template")
    return text.replace(old, new)
