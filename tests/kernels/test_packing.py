import ast
import json
import sys
from pathlib import Path

import pytest
from world import ROOT, params

from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.kernels import packing
from competition.kernels.kernel_script import restore

STAGES = ("download", "prepare", "resolve", "tune", "train", "predict", "blend")


def imported(module):
    """Names that a module of this project imports, in functions too where they are of this project."""
    file = ROOT / (module.replace(".", "/") + ".py")
    tree = ast.parse(file.read_text() if file.exists() else "")
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        yield from (n for n in names if id(node) in top or n.startswith(("competition", "pipelines")))


def reached(modules):
    seen, waiting = set(), list(modules)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imported(name)
    return seen


def test_the_kernel_checks_every_package_that_its_stages_import():
    """JAX is left out: only its own engine imports it, where the image has it."""
    tops = {name.split(".")[0] for name in reached(f"pipelines.{stage}" for stage in STAGES)}
    others = tops - {"competition", "pipelines", "jax"} - set(sys.stdlib_module_names)
    assert {"keras", "numpy", "pydantic"} <= others  # the walk went all the way
    assert others <= {module.split(".")[0] for module in packing.NEEDS}


def test_requirements_are_those_of_the_project():
    found = packing.requirements((ROOT / "pyproject.toml").read_text())
    assert found.keys() == packing.NEEDS.keys()
    assert found["PIL"].startswith("pillow>=") and found["tensorflow"].startswith("tensorflow-cpu>=")


def test_the_parameters_that_travel_mean_the_same_and_name_nothing_of_this_machine(tmp_path):
    here = params(
        "kernel.machine=TpuV5E8 storage.bucket=gs://mine/x competition.source=here.zip convert.target=/here train.epochs=3"
    )
    packed = packing.files(ROOT, here, here.members)
    assert {"competition/config/errors.py", "pipelines/train.py"} <= packed.keys()
    assert all(name.endswith(".py") or name == packing.PARAMS for name in packed)
    (tmp_path / packing.PARAMS).write_bytes(packed[packing.PARAMS])
    there = load_params(tmp_path / packing.PARAMS)
    assert (there.members, there.train, there.predict) == (here.members, here.train, here.predict)
    assert (there.competition.source, there.storage.bucket, there.device.require) == ("", "", "tpu")
    assert there.convert.target == ""
    assert "here.zip" not in json.loads(packed[packing.PARAMS])["competition"].values()


def test_images_and_weights_below_the_projects_folder_can_travel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pictures/rose/1.jpg", "pictures/tulip/2.jpg", "mine/a.weights.h5", "mine/not-asked-for.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    here = params("'prepare.external={more: pictures}' members.cnn.weights=mine/a.weights.h5")
    twice = {**here.members, "again": here.members["cnn"]}
    assert packing.own_files(here, twice) == {
        "pictures": [Path("pictures/rose/1.jpg"), Path("pictures/tulip/2.jpg")],
        "mine": [Path("mine/a.weights.h5")],
    }
    assert packing.own_files(params(), params().members) == {}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("prepare.external={more: /pictures}", "prepare.external.more: /pictures is outside the project"),
        ("prepare.external={more: ../pictures}", "prepare.external.more: ../pictures is outside the project"),
        ("members.cnn.weights=~/mine.weights.h5", "members.cnn.weights: ~/mine.weights.h5 is outside the project"),
        ("members.cnn.weights=mine.weights.h5", "members.cnn.weights: mine.weights.h5 was not found"),
    ],
)
def test_files_outside_the_project_are_refused(sets, message):
    here = params(f"'{sets}'")
    with pytest.raises(UserError, match=message):
        packing.own_files(here, here.members)


def test_packed_files_are_restored_at_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pictures/rose/1.jpg", "top.weights.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    here = params("'prepare.external={more: pictures}' members.cnn.weights=top.weights.h5")
    units = {place: (Path(place), files) for place, files in packing.own_files(here, here.members).items()}
    packing.carry(units, tmp_path / "inputs" / "carried")
    assert restore(tmp_path / "inputs", tmp_path / "root") == ["pictures", "."]
    for name in ("pictures/rose/1.jpg", "top.weights.h5"):
        assert (tmp_path / "root" / name).read_bytes() == name.encode()


@pytest.mark.parametrize(("machine", "kind"), [("TpuV5E8", "tpu"), ("NvidiaTeslaT4", "gpu"), ("", ""), ("None", "")])
def test_machines_have_a_kind(machine, kind):
    assert packing.accelerator(machine) == kind
