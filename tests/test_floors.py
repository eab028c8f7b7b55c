"""The direction of imports, the modules without heavy imports, and forbidden calls."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from pipelines.terminal.verbs import FOLDERS

ROOT = Path(__file__).resolve().parents[1]
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
    ("competition.images", "competition.submission"),
    ("competition.training",),
    ("competition.tuning",),
    ("competition.preflight",),
    ("competition.workspace",),
    ("competition.budget",),
    ("competition.kernels",),
    ("competition.report", "competition.serving", "competition.cluster", "competition.convert"),
    ("pipelines.terminal",),
    ("pipelines.execution",),
    ("pipelines.main_job", "pipelines.inspect", "pipelines.kaggle", "pipelines.machines", "pipelines.serving"),
    ("pipelines",),
]
PACKAGES = ("competition", "pipelines")  # empty __init__.py files, which belong to no part

# Only these modules may import TensorFlow, Keras, JAX or Optuna at import time.
HEAVY = (
    "competition.training",
    "competition.images.batches",
    "competition.serving.decoding",
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


TREES = {module: ast.parse(file.read_text(encoding="utf-8")) for module, file in FILES.items()}
IMPORTS = {module: imported(tree) for module, tree in TREES.items()}


def test_a_module_imports_only_lower_layers_and_its_own_part() -> None:
    for module in FILES.keys() - set(PACKAGES):
        layer, part = part_of(module)
        for other in IMPORTS[module] - set(PACKAGES):
            other_layer, other_part = part_of(other)
            assert other_layer < layer or other_part == part, f"{module} imports {other}"


def test_the_top_level_packages_have_empty_init_files() -> None:
    assert [FILES[name].read_text() for name in PACKAGES] == ["", ""]


def test_there_are_no_import_cycles() -> None:
    list(TopologicalSorter(IMPORTS).static_order())


def test_no_stage_imports_another_stage() -> None:
    for module in FILES:
        if module.startswith("pipelines."):
            others = {name for name in IMPORTS[module] if name.count(".") == 2 and is_verb(name)}
            assert not others, module


def is_verb(module: str) -> bool:
    package, *folders = module.split(".")
    return package == "pipelines" and folders[0] in FOLDERS


def test_every_file_in_a_verb_folder_is_a_verb() -> None:
    files = {tuple(name.split(".")[1:]) for name in FILES if name.count(".") == 2 and is_verb(name)}
    assert files == {(folder, verb.replace("-", "_")) for folder, verbs in FOLDERS.items() for verb in verbs}


def heavy_imports(modules: list[str]) -> str:
    code = (
        f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
        "print(*sorted({'tensorflow', 'keras', 'jax', 'torch', 'optuna'} & sys.modules.keys()))"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return process.stdout.strip()


def test_light_modules_import_neither_tensorflow_nor_keras_nor_jax() -> None:
    light = [m for m in FILES if m in LIGHT_EXCEPTIONS or not any(is_in(m, heavy) for heavy in HEAVY)]
    assert "pipelines.main_job.train" in light
    assert heavy_imports([*light, "goldfold"]) == ""


def test_the_python_interface_is_imported_by_nothing() -> None:
    importing = [
        name for name, file in FILES.items() if re.search(r"^\s*(import|from) goldfold\b", file.read_text(), re.M)
    ]
    assert importing == []


FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "__import__", "extractall", "system"),
    *("popen", "Lambda", "mktemp", "unsafe_load", "full_load"),
}
FORBIDDEN_ARGUMENTS = {
    ("shell", True),
    ("safe_mode", False),
    ("allow_pickle", True),
    ("typ", "unsafe"),
    ("verify", False),
}


def forbidden_in(tree: ast.AST) -> list[str]:
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            uses += [f"import {name}" for name in names if name.split(".")[0] in FORBIDDEN_IMPORTS]
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            owner = getattr(getattr(function, "value", None), "id", "")
            if name in FORBIDDEN_CALLS or (owner, name) == ("yaml", "load"):
                uses.append(f"{name}()")
            given = [(one.arg, one.value.value) for one in node.keywords if isinstance(one.value, ast.Constant)]
            uses += [f"{argument}={value}" for argument, value in given if (argument, value) in FORBIDDEN_ARGUMENTS]
    return uses


def test_no_file_executes_text_or_unpacks_archives_unchecked() -> None:
    uses = {module: forbidden_in(tree) for module, tree in TREES.items()}
    assert not any(uses.values()), {module: found for module, found in uses.items() if found}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from joblib import load", "eval('1')", "yaml.load(text)", "archive.extractall(p)",
        "keras.models.load_model(p, safe_mode=False)", "subprocess.run(x, shell=True)", "YAML(typ='unsafe')",
    ],
)  # fmt: skip
def test_every_forbidden_use_is_detected(source: str) -> None:
    assert len(forbidden_in(ast.parse(source))) == 1
