import ast
import json
import sys
from pathlib import Path

import pytest
from builders import ROOT, params

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.config.plugins import NO_PLUGINS, activate, plugin_digest
from competition.ensemble.metrics import metric_named
from competition.kernels import packing
from competition.kernels.kernel_script import restore

STAGES = ("download", "prepare", "resolve", "tune", "train", "predict", "blend")


def imported_names(module):
    """Names that a module imports at its top level, and modules of this project that it imports in functions."""
    file = ROOT / (module.replace(".", "/") + ".py")
    tree = ast.parse(file.read_text() if file.exists() else "")
    top_level = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        yield from (n for n in names if id(node) in top_level or n.startswith(("competition", "pipelines")))


def test_the_kernel_checks_every_package_that_its_stages_import():
    """JAX is excluded: only the JAX engine imports it, on images that contain it. So is protobuf, which TensorFlow brings."""
    waiting = [f"pipelines.{next(ROOT.glob(f'pipelines/*/{stage}.py')).parent.name}.{stage}" for stage in STAGES]
    imported = set()
    while waiting:
        if (name := waiting.pop()) not in imported:
            imported.add(name)
            waiting += imported_names(name)
    top_level_names = {name.split(".")[0] for name in imported}
    external_packages = top_level_names - {"competition", "pipelines", "jax", "google"} - set(sys.stdlib_module_names)
    assert {"keras", "numpy", "pydantic"} <= external_packages  # the search was complete
    assert external_packages <= {module.split(".")[0] for module in packing.NEEDS}


def test_packed_parameters_are_equal_but_contain_no_local_paths(tmp_path):
    local_params = params(
        "kernel.machine=TpuV5E8 storage.bucket=gs://mine/x competition.source=here.zip convert.target=/here train.epochs=3"
    )
    packed = packing.files(ROOT, local_params, local_params.members)
    assert {"competition/config/errors.py", "pipelines/main_job/train.py"} <= packed.keys()
    assert all(name.endswith((".py", ".yaml")) or name == packing.PARAMS for name in packed)
    (tmp_path / packing.PARAMS).write_bytes(packed[packing.PARAMS])
    unpacked_params = load_params(tmp_path / packing.PARAMS)
    for block in ("members", "train", "predict"):
        assert getattr(unpacked_params, block) == getattr(local_params, block)
    assert unpacked_params.competition.source == unpacked_params.storage.bucket == unpacked_params.convert.target == ""
    assert unpacked_params.device.require == "tpu"
    assert "here.zip" not in json.loads(packed[packing.PARAMS])["competition"].values()


def test_the_plugins_file_travels_with_the_project(tmp_path):
    (tmp_path / "mine.py").write_text("METRICS = {'zero': lambda labels, probs: 0.0}\n")
    (tmp_path / "recipe.yaml").write_text(f"extends: {ROOT}/params.yaml\nplugins: mine.py\n")
    here = load_params(tmp_path / "recipe.yaml", parse_overrides("competition.metric=zero"))
    packed = packing.files(ROOT, here, here.members)
    (there := tmp_path / "kernel").mkdir()
    for name in (packing.PARAMS, packing.PLUGINS):
        (there / name).write_bytes(packed[name])
    try:
        assert load_params(there / packing.PARAMS).plugins == str(there / packing.PLUGINS)
        assert plugin_digest("METRICS", ["zero"]) and metric_named("zero").name == "zero"
    finally:
        activate(NO_PLUGINS)


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def test_the_folder_of_a_preset_travels_and_asks_for_keras_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, "models/vit/config.json", "models/vit/model.weights.h5")
    here = params("members.cnn.architecture=from_file members.cnn.weights=models/vit")
    files = [Path("models/vit/config.json"), Path("models/vit/model.weights.h5")]
    assert packing.own_files(here, here.members) == {"models/vit": files}
    text = (ROOT / "pyproject.toml").read_text()
    # From 0.30 on it pins a kagglesdk that kaggle excludes: the two would not be installed together.
    assert packing.requirements(text, here.members.values())["keras_hub"] == "keras-hub>=0.29,<0.30"
    assert "keras_hub" not in packing.requirements(text, params().members.values())


def test_images_and_weights_inside_the_project_are_packed_and_restored_at_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, "pictures/rose/1.jpg", "mine/a.weights.h5", "top.weights.h5", "mine/not-asked-for.h5")
    weights = "members.cnn.weights=mine/a.weights.h5 members.small.weights=top.weights.h5"
    local_params = params(f"'prepare.external={{more: pictures}}' {weights}")
    packed = packing.own_files(local_params, {**local_params.members, "again": local_params.members["cnn"]})
    packing.carry({folder: (Path(folder), files) for folder, files in packed.items()}, tmp_path / "inputs" / "carried")
    assert restore(tmp_path / "inputs", tmp_path / "root") == ["pictures", "mine", "."]
    restored = {path.relative_to(tmp_path / "root").as_posix(): path for path in (tmp_path / "root").rglob("*.*")}
    assert restored.keys() == {"pictures/rose/1.jpg", "mine/a.weights.h5", "top.weights.h5"}
    assert all(path.read_bytes() == name.encode() for name, path in restored.items())
    assert packing.own_files(params(), params().members) == {}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("prepare.external={more: ../pictures}", "prepare.external.more: ../pictures is outside the project"),
        ("members.cnn.weights=~/mine.weights.h5", "members.cnn.weights: ~/mine.weights.h5 is outside the project"),
        ("members.cnn.weights=mine.weights.h5", "members.cnn.weights: mine.weights.h5 was not found"),
    ],
)
def test_files_outside_the_project_are_errors(sets, message):
    local_params = params(f"'{sets}'")
    with pytest.raises(UserError, match=message):
        packing.own_files(local_params, local_params.members)
