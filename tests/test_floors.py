"""The direction of imports, the modules without heavy imports, forbidden calls, and what is installed where."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from builders import ROOT
from packaging.requirements import Requirement

from competition.kernels.packing import NEEDS
from pipelines.terminal.verbs import FOLDERS

FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for folder in ("competition", "pipelines")
    for file in sorted((ROOT / folder).rglob("*.py"))
}

# Layers from the lowest. A module belongs to the layer of its longest prefix and imports lower layers or its own part.
LAYERS: list[tuple[str, ...]] = [
    ("competition.config",),
    ("competition.files",),
    ("competition.ensemble",),
    ("competition.kaggle",),
    ("competition.storage",),
    ("competition.prepare",),
    ("competition.input_pipeline", "competition.submission"),
    ("competition.training",),
    ("competition.tuning",),
    ("competition.preflight",),
    ("competition.workspace",),
    ("competition.budget",),
    ("competition.kernels",),
    ("competition.report", "competition.serving", "competition.cluster", "competition.tfrecord_export"),
    ("pipelines.terminal",),
    ("pipelines.execution",),
    ("pipelines.main_job", "pipelines.inspect", "pipelines.kaggle", "pipelines.machines", "pipelines.serving"),
    ("pipelines",),
]
PACKAGES = ("competition", "pipelines")  # empty __init__.py files, which belong to no part

# Only these modules may import TensorFlow, Keras, JAX or Optuna at import time.
HEAVY = (
    "competition.training",
    "competition.input_pipeline.batches",
    "competition.serving.graph",
    "competition.serving.writing",
    "competition.tuning.journal",
    "competition.tuning.samplers",
    "competition.tuning.study",
    "competition.tuning.trials",
    "pipelines.inspect.debug",
)
LIGHT_EXCEPTIONS = ("competition.training.checkpoint",)


def part_of(module: str) -> tuple[int, str]:
    """Return (layer, prefix) of a module."""
    candidates = [(prefix, n) for n, layer in enumerate(LAYERS) for prefix in layer if is_in(module, prefix)]
    assert candidates, f"{module} has no layer: add it to LAYERS"
    prefix, layer = max(candidates, key=lambda candidate: len(candidate[0]))
    return layer, prefix


def is_in(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def imported(tree: ast.AST) -> set[str]:
    """Every module of this project that is imported anywhere in the tree, in functions too."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide their layer"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                modules.add(name if name in FILES else str(node.module))
    return modules & FILES.keys()


IMPORTS = {module: imported(ast.parse(file.read_text(encoding="utf-8"))) for module, file in FILES.items()}


def test_a_module_imports_only_lower_layers_and_its_own_part() -> None:
    assert [FILES[name].read_text() for name in PACKAGES] == ["", ""]
    for module in FILES.keys() - set(PACKAGES):
        layer, part = part_of(module)
        for other in IMPORTS[module] - set(PACKAGES):
            other_layer, other_part = part_of(other)
            assert other_layer < layer or other_part == part, f"{module} imports {other}"


def test_there_are_no_import_cycles_and_nothing_imports_the_python_interface() -> None:
    list(TopologicalSorter(IMPORTS).static_order())
    imports = re.compile(r"^\s*(import|from) goldfold\b", re.M)
    assert [name for name, file in FILES.items() if imports.search(file.read_text())] == []


def test_every_file_in_a_verb_folder_is_a_verb_and_imports_no_other() -> None:
    verbs = {f"pipelines.{folder}.{verb.replace('-', '_')}" for folder in FOLDERS for verb in FOLDERS[folder]}
    in_folders = [name for name in FILES if name.count(".") == 2 and name.split(".")[1] in FOLDERS]
    assert verbs == {name for name in in_folders if name.startswith("pipelines.")}
    assert [(name, imported) for name, imported in IMPORTS.items() if name in verbs and imported & verbs] == []


def test_light_modules_import_neither_tensorflow_nor_keras_nor_jax() -> None:
    light = [m for m in FILES if m in LIGHT_EXCEPTIONS or not any(is_in(m, heavy) for heavy in HEAVY)]
    assert "pipelines.main_job.train" in light
    code = (
        f"import importlib, sys\nfor m in {[*light, 'goldfold']!r}: importlib.import_module(m)\n"
        "print(*sorted({'tensorflow', 'keras', 'jax', 'torch', 'optuna'} & sys.modules.keys()))"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == ""


KERNEL_STAGES = ("download", "prepare", "resolve", "tune", "train", "predict", "blend")


def test_the_kernel_checks_every_package_that_its_stages_import() -> None:
    """JAX is excluded: only the JAX engine imports it, on images that contain it. So is protobuf, which TensorFlow brings."""
    waiting, reached = [f"pipelines.main_job.{stage}" for stage in KERNEL_STAGES], set()
    while waiting:
        if (module := waiting.pop()) not in reached:
            reached.add(module)
            waiting += IMPORTS[module]
    modules: set[str] = set()
    for node in (node for module in reached for node in ast.parse(FILES[module].read_text()).body):
        modules |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        modules |= {str(node.module)} if isinstance(node, ast.ImportFrom) else set()
    packages = {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names)
    assert {"keras", "numpy", "pydantic"} <= packages  # the search was complete
    assert packages - {"competition", "pipelines", "jax", "google"} <= {module.split(".")[0] for module in NEEDS}


FORBIDDEN = re.compile(
    r"^\s*(?:from|import)\b.*\b(?:pickle|cPickle|dill|cloudpickle|joblib|shelve|marshal)\b"
    r"|\b(?:eval|exec|__import__|extractall|system|popen|Lambda|mktemp|unsafe_load|full_load|yaml\.load)\("
    r"|\b(?:shell=True|safe_mode=False|allow_pickle=True|typ=.unsafe|verify=False)",
    re.MULTILINE,
)


def test_no_file_executes_text_or_unpacks_archives_unchecked() -> None:
    uses = {module: FORBIDDEN.findall(file.read_text(encoding="utf-8")) for module, file in FILES.items()}
    assert {module: found for module, found in uses.items() if found} == {}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+(\s*;.*)?")


@pytest.mark.parametrize(
    ("platform", "machine", "package"),
    [("linux", "x86_64", "tensorflow-cpu"), ("linux", "aarch64", "tensorflow"), ("darwin", "arm64", "tensorflow")],
)
def test_the_extra_cpu_is_one_tensorflow_on_every_platform(platform: str, machine: str, package: str) -> None:
    extra = [Requirement(text) for text in PROJECT["project"]["optional-dependencies"]["cpu"]]
    environment = {"sys_platform": platform, "platform_machine": machine}
    assert [one.name for one in extra if one.marker is None or one.marker.evaluate(environment)] == [package]


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_constraints_are_names_and_versions_only_and_pin_every_tensorflow_alike(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    assert all(PINNED.fullmatch(line) for line in lines)
    versions = dict(line.lower().replace("_", "-").split("==") for line in lines)
    assert versions["tensorflow"] == versions["tensorflow-cpu"]


def test_beside_the_clone_the_module_is_imported_and_not_the_folder(tmp_path: Path) -> None:
    """With this package-dir an editable installation appends the project's folder to sys.path."""
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {"": "."}
    (tmp_path / "goldfold").mkdir()
    code = f"import sys; sys.path.append({str(ROOT)!r}); import goldfold; print(goldfold.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True)
    assert Path(printed.strip()) == ROOT / "goldfold.py"
