"""What travels to a kernel: the code of the stages, parameters that name nothing of this machine, requirements."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.errors import Refusal
from competition.params import Member, Params
from competition.params_file import file_tree
from competition.remote.kernels import project_files

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
}


def files(root: Path, params: Params, members: Mapping[str, Member]) -> dict[str, bytes]:
    """Name -> content. members: as they are trained here, overrides and tuned values put in."""
    return {
        **project_files(root, TRAVELS),
        PARAMS: json.dumps(file_tree(there(params, members)), indent=1).encode(),
    }


def requirements(pyproject: str) -> dict[str, str]:
    """Module -> requirement, from the text of pyproject.toml."""
    told = tomllib.loads(pyproject)["project"]
    lines = [*told["dependencies"], *told["optional-dependencies"]["cpu"]]
    asked = {re.split(r"[<>=!~\[ ]", line, maxsplit=1)[0].lower(): line for line in lines}
    return {module: asked[package] for module, package in NEEDS.items()}


def there(params: Params, members: Mapping[str, Member]) -> Params:
    """Parameters for Kaggle's machine. Refusal for folders and files that only this one has."""
    if params.prepare.external:
        raise Refusal("prepare.external names folders of this machine, which a kernel cannot read; empty it to use one")
    for name, member in members.items():
        if member.weights not in ("none", "imagenet") and "://" not in member.weights:
            raise Refusal(
                f"members.{name}.weights: {member.weights} is a file of this machine, which a kernel cannot read; "
                "put it on gs://, or use none or imagenet"
            )
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
