"""The direction of imports, what stays light, and what no file may use."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for folder in ("competition", "pipelines")
    for file in sorted((ROOT / folder).rglob("*.py"))
}

# From the ground up. A module stands on the floor of its longest prefix and imports lower floors, or its own room.
FLOORS: list[tuple[str, ...]] = [
    ("competition.config.errors",),
    (
        "competition.config.yaml_text",
        "competition.artifacts.manifest",
    ),  # atomic files and digests, which all write with
    ("competition.config",),
    ("competition.ensemble", "competition.data.competition"),
    ("competition.kaggle",),
    ("competition.storage",),
    ("competition.data",),
    ("competition.submission",),
    ("competition.training",),
    ("competition.preflight",),
    ("competition.artifacts",),
    ("competition.kernels",),
    ("competition.report", "competition.serving"),
    ("pipelines.progress", "pipelines.versions"),
    ("pipelines.runner",),
    ("pipelines.backend", "pipelines.fold_training"),
    ("pipelines.trainer",),
    ("pipelines.teachers",),
    ("pipelines.cli",),
    ("pipelines",),
]
SHARED = {
    "pipelines.progress",
    "pipelines.versions",
    "pipelines.runner",
    "pipelines.backend",
    "pipelines.fold_training",
    "pipelines.trainer",
    "pipelines.teachers",
    "pipelines.cli",
}  # by all stages
PACKAGES = ("competition", "pipelines")  # empty __init__.py files: no room of their own

# These, and no others, may start TensorFlow, Keras or JAX by being imported.
HEAVY = (
    "competition.training",
    "competition.data.augment",
    "competition.data.rand_augment",
    "competition.data.batches",
    "competition.serving.decoding",
    "competition.serving.graph",
    "competition.serving.writing",
    "pipelines.debug",
)
LIGHT_ALL_THE_SAME = ("competition.training.checkpoint", "competition.training.schedule", "competition.training.tuning")


def room_of(module: str) -> tuple[int, str]:
    """(floor, prefix) of a module."""
    fits = [(prefix, n) for n, floor in enumerate(FLOORS) for prefix in floor if is_in(module, prefix)]
    assert fits, f"{module} has no floor: give it one in FLOORS"
    prefix, floor = max(fits, key=lambda fit: len(fit[0]))
    return floor, prefix


def is_in(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def imported(tree: ast.AST) -> set[str]:
    """Every module of this project that is imported anywhere in the tree, in functions too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor they come from"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else str(node.module))
    return found & FILES.keys()


IMPORTS = {module: imported(ast.parse(file.read_text(encoding="utf-8"))) for module, file in FILES.items()}


@pytest.mark.parametrize("module", sorted(FILES.keys() - set(PACKAGES)))
def test_a_module_imports_only_lower_floors_and_its_own_room(module: str) -> None:
    floor, room = room_of(module)
    for other in IMPORTS[module] - set(PACKAGES):
        other_floor, other_room = room_of(other)
        assert other_floor < floor or (other_room == room and room != "pipelines"), f"{module} imports {other}"


def test_the_folders_that_hold_all_rooms_have_no_code_of_their_own() -> None:
    assert [FILES[name].read_text() for name in PACKAGES] == ["", ""]


def test_no_modules_import_each_other_in_a_circle() -> None:
    list(TopologicalSorter(IMPORTS).static_order())


def test_no_stage_imports_another_stage() -> None:
    for module in FILES:
        if module.startswith("pipelines."):
            others = {name for name in IMPORTS[module] if name.startswith("pipelines.")}
            assert others <= SHARED, module


def heavy_ones(modules: list[str]) -> str:
    code = (
        f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
        "print(*sorted({'tensorflow', 'keras', 'jax', 'torch', 'optuna'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_light_modules_start_neither_tensorflow_nor_keras_nor_jax() -> None:
    light = [m for m in FILES if m in LIGHT_ALL_THE_SAME or not any(is_in(m, heavy) for heavy in HEAVY)]
    assert "pipelines.train" in light
    assert heavy_ones(light) == ""


def test_this_would_be_seen() -> None:
    assert "keras" in heavy_ones(["competition.training.model"])


FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "__import__",
    "extractall",
    "system",
    "popen",
    "Lambda",
    "mktemp",
    "unsafe_load",
    "full_load",
}
FORBIDDEN_ARGUMENTS = {
    ("shell", True),
    ("safe_mode", False),
    ("allow_pickle", True),
    ("typ", "unsafe"),
    ("verify", False),
}


def forbidden_in(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [f"import {name}" for name in names if name.split(".")[0] in FORBIDDEN_IMPORTS]
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            owner = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
            if name in FORBIDDEN_CALLS or (owner, name) == ("yaml", "load"):
                found.append(f"{name}()")
            for keyword in node.keywords:
                if (
                    isinstance(keyword.value, ast.Constant)
                    and (keyword.arg, keyword.value.value) in FORBIDDEN_ARGUMENTS
                ):
                    found.append(f"{keyword.arg}={keyword.value.value}")
    return found


@pytest.mark.parametrize("module", sorted(FILES))
def test_no_file_runs_text_as_code_or_unpacks_blindly(module: str) -> None:
    assert forbidden_in(FILES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "exec(x)",
        "yaml.load(text)",
        "archive.extractall(p)",
        "keras.models.load_model(p, safe_mode=False)",
        "subprocess.run(x, shell=True)",
        "np.load(p, allow_pickle=True)",
        "os.system('ls')",
        "keras.layers.Lambda(f)",
        "YAML(typ='unsafe')",
    ],
)
def test_every_forbidden_thing_would_be_found(source: str) -> None:
    assert len(forbidden_in(source)) == 1
