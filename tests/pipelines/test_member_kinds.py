"""Every kind of member that can be trained is exported, explained, trained in a kernel and on a cluster."""

import importlib.util
import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from builders import ROOT
from stages import MAIN_JOB, Workspace, new_workspace
from test_remote_main_job import KaggleWorkspace

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from fake_kaggle.server import FakeKaggle
from ray_nodes import RayCluster

pytestmark = pytest.mark.timeout(1800)
PARAMS = """
extends: {root}/params.yaml
plugins: my_plugins.py
competition: {{name: small, adapter: digits}}
prepare: {{folds: 2}}
train: {{epochs: 1, batch: 150, steps_per_call: 5}}
members:
  cnn: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
  pupil: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, teacher: [cnn]}}
  application: {{architecture: MobileNet, image_size: 32, alpha: 0.25, weights: none}}
  plugin: {{architecture: tiny, image_size: 16, alpha: 1.0, weights: none}}
  keras_file: {{architecture: from_file, image_size: 16, alpha: 1.0, weights: models/network.keras, normalise: 0..1}}
  frozen: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, head: {{kind: rbf, strengths: [30]}}}}
{preset}
predict: {{batch: 300, views: [identity]}}
policy: {{rounds: 1}}
blend: {{methods: [equal], rounds: 1, bags: 1}}
decision: {{rules: [argmax]}}
honest: {{resamples: 20}}
kernel: {{machine: "", devices: 1, internet: false, hours: 0.5, reserve: 0.01, pause: 0.1}}
kaggle: {{first_wait: 0.05, longest_wait: 3.0, score_wait: 60.0}}
"""
PRESET = """  preset: {architecture: from_file, image_size: 16, alpha: 1.0, weights: models/vit, normalise: "-1..1"}"""
PLUGINS = """
def tiny(image_size, classes):
    import keras

    inputs = keras.Input((image_size, image_size, 3))
    x = keras.layers.Flatten()(keras.layers.AveragePooling2D(4)(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(x))

MODELS = {"tiny": tiny}
"""
HAS_HUB = importlib.util.find_spec("keras_hub") is not None
ALL_KINDS = ["cnn", "pupil", "application", "plugin", "keras_file", "frozen", *(["preset"] if HAS_HUB else [])]


def transformer() -> keras.Model:
    """A block of a vision transformer with the exact GELU, which TensorFlow computes by Erfc."""
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Reshape((16, 8))(keras.layers.Conv2D(8, 4, strides=4)(inputs))
    x = x + keras.layers.MultiHeadAttention(2, 4)(x, x)
    x = x + keras.layers.Dense(8)(keras.layers.Dense(16, activation="gelu")(keras.layers.LayerNormalization()(x)))
    return keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(keras.layers.GlobalAveragePooling1D()(x)))


@pytest.fixture(scope="module")
def finished_kinds(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace after the main job; tests must not change it."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "models").mkdir()
    keras.utils.set_random_seed(0)
    transformer().save(folder / "models" / "network.keras")
    if HAS_HUB:
        import keras_hub

        sizes = {"patch_size": 4, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
        keras_hub.models.ViTBackbone(image_shape=(16, 16, 3), **sizes).save_to_preset(str(folder / "models" / "vit"))
    (folder / "my_plugins.py").write_text(PLUGINS)
    workspace = new_workspace(folder, PARAMS.format(root=ROOT, preset=PRESET if HAS_HUB else ""))
    # All digits, as a kernel reads them; relative paths of weights begin in the folder.
    workspace.do_in_one_process(*MAIN_JOB, cwd=folder)
    return workspace


def in_folder(workspace: Workspace, stage: str, *arguments: str) -> str:
    """Run a stage in the folder of the workspace."""
    result = workspace.run(stage, *arguments, cwd=workspace.folder)
    assert result.code == 0, f"{stage}: {result.out}\n{result.err}"
    return result.out


@pytest.mark.long
def test_the_blend_of_all_kinds_is_exported_and_both_formats_give_the_submission(finished_kinds, tmp_path) -> None:
    workspace = finished_kinds.copy_to(tmp_path)
    in_folder(workspace, "export", "--format", "saved_model,onnx")
    folder = workspace.work / "export" / "blend"
    result = json.loads((folder / "manifest.json").read_text())["result"]
    assert [check["format"] for check in result["checks"]] == ["saved_model", "onnx"]
    assert all(check["difference"] < 1e-5 and not check["changed"] for check in result["checks"])
    assert result["stored"] < 1e-3
    card = (folder / "README.md").read_text()
    assert [kind for kind in ALL_KINDS if f"| {kind} | " not in card] == []


def test_members_of_every_kind_are_explained(finished_kinds: Workspace, tmp_path: Path) -> None:
    workspace = finished_kinds.copy_to(tmp_path)
    for kind in [kind for kind in ALL_KINDS if kind not in ("cnn", "pupil")]:  # theirs are the methods of application
        in_folder(workspace, "grad-cam", "--member", kind)
        result = json.loads((workspace.work / "grad_cam.json").read_text())["result"]
        assert result["method"] == ("Grad-CAM" if kind == "application" else "Occlusion"), kind
        with np.load(workspace.work / "grad_cam.npz") as arrays:
            assert arrays["maps"].max() == 1 and len(arrays["maps"]) == 2 * result["wrong"] + result["right"]


@pytest.mark.long
@pytest.mark.parametrize("verb", ["kernel", "cluster"])
def test_members_trained_elsewhere_are_those_of_this_machine(verb: str, finished_kinds: Workspace, tmp_path) -> None:
    workspace, machine = finished_kinds.copy_to(tmp_path / "workspace"), tmp_path / "machine"
    machine.mkdir()
    for fold_model in workspace.work.glob("members/*/*/fold*/manifest.json"):
        fold_model.unlink()
    if verb == "kernel":
        with FakeKaggle(machine) as kaggle:
            kaggle.forks_kernels = True
            remote = KaggleWorkspace(kaggle, workspace, machine)
            output = remote.do("kernel", cwd=workspace.folder, PYTHONPATH=str(ROOT))
    else:
        cluster = RayCluster(machine)
        try:
            cluster.start("127.0.0.2")
            output = in_folder(workspace, "train", "--cluster", cluster.address)
        finally:
            cluster.stop()
    assert "Traceback" not in output
    here, there = finished_kinds.weights(), workspace.weights()
    assert here == there and {fold.partition("/")[0] for fold in here} == set(ALL_KINDS)
    output = in_folder(workspace, "train")
    assert all(f"train {kind}: folds 0, 1 current" in output for kind in ALL_KINDS)
