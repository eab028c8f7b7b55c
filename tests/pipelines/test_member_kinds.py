"""Every kind of member that can be trained is exported, explained, trained in a kernel and on a cluster.

Features of frozen networks are computed once however many members, folds and trials use them.
"""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
from builders import ROOT, save_images
from PIL import Image
from stages import FEWER_DIGITS, MAIN_JOB, Workspace, new_workspace
from test_remote_main_job import KaggleWorkspace

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from fake_kaggle.server import FakeKaggle
from ray_nodes import RayCluster

from competition.config.params_file import load_params

pytestmark = pytest.mark.timeout(1800)
PARAMS = """
extends: {root}/tests/small.yaml
plugins: my_plugins.py
train: {{epochs: 1, batch: 150, steps_per_call: 5}}
members:
  cnn: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
  pupil: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, teacher: [cnn]}}
  application: {{architecture: MobileNet, image_size: 32, alpha: 0.25, weights: none}}
  plugin: {{architecture: tiny, image_size: 16, alpha: 1.0, weights: none}}
  keras_file: {{architecture: from_file, image_size: 16, alpha: 1.0, weights: models/network.keras, normalise: 0..1}}
  frozen: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, head: {{kind: rbf, strengths: [30]}}}}
{preset}
predict: {{batch: 300}}
blend: {{methods: [equal]}}
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


@pytest.mark.long
def test_the_blend_of_all_kinds_is_exported_and_both_formats_give_the_submission(finished_kinds, tmp_path) -> None:
    workspace = finished_kinds.copy_to(tmp_path)
    workspace.do_in_one_process("export", arguments=["--format", "saved_model,onnx"], cwd=workspace.folder)
    folder = workspace.work / "export" / "blend"
    result = json.loads((folder / "manifest.json").read_text())["result"]
    assert [check["format"] for check in result["checks"]] == ["saved_model", "onnx"]
    assert all(check["difference"] < 1e-5 and not check["changed"] for check in result["checks"])
    assert result["stored"] < 1e-3
    assert [kind for kind in ALL_KINDS if f"| {kind} | " not in (folder / "README.md").read_text()] == []


@pytest.mark.long
def test_members_of_every_kind_are_explained(finished_kinds: Workspace, tmp_path: Path) -> None:
    workspace = finished_kinds.copy_to(tmp_path)
    for kind in [kind for kind in ALL_KINDS if kind not in ("cnn", "pupil")]:  # theirs are the methods of application
        workspace.do_in_one_process("grad-cam", arguments=["--member", kind], cwd=workspace.folder)
        result = json.loads((workspace.work / "grad_cam.json").read_text())["result"]
        assert result["method"] == ("Grad-CAM" if kind == "application" else "Occlusion"), kind
        with Image.open(workspace.work / "grad_cam.png") as sheet:
            assert len(set(sheet.convert("L").getdata())) > 10, kind  # not a blank image


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
            arguments = ["--cluster", cluster.address]
            output = workspace.do_in_one_process("train", arguments=arguments, cwd=workspace.folder)
        finally:
            cluster.stop()
    assert "Traceback" not in output
    here, there = finished_kinds.weights(), workspace.weights()
    assert here == there and {fold.partition("/")[0] for fold in here} == set(ALL_KINDS)
    output = workspace.do_in_one_process("train", cwd=workspace.folder)
    assert all(f"train {kind}: folds 0, 1 current" in output for kind in ALL_KINDS)


FROZEN_PARAMS = f"""
extends: {ROOT}/tests/small.yaml
prepare: {{folds: 3}}
train: {{batch: 300}}
tune: {{trials: 3, members: [linear], folds: [0, 1], search: {{head.strength: {{low: 0.01, high: 10.0, log: true}}}}}}
members:
  linear: {{architecture: cnn, image_size: 16, alpha: 0.5, weights: none,
    head: {{kind: linear, views: [identity, shift_up], strengths: [0.1, 1.0]}}}}
  rbf: {{architecture: cnn, image_size: 16, alpha: 0.5, weights: none, head: {{kind: rbf}}}}
  both: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none, head: {{kind: linear, also: [rbf]}}}}
predict: {{batch: 300, views: [identity, shift_up]}}
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    workspace = new_workspace(tmp_path_factory.mktemp("frozen"), FROZEN_PARAMS)
    return workspace, workspace.do_in_one_process(*MAIN_JOB, code=FEWER_DIGITS)


def test_features_are_computed_once_for_all_members_folds_and_trials_and_the_heads_are_blended(frozen, tmp_path):
    workspace, output = frozen
    # Two networks, train and test images; 3 members x 3 folds, and trials.
    assert output.count(" images under 'identity', 'shift_up' took ") == 4, output
    assert len(list(workspace.work.glob("features/*/features.npy"))) == 8  # of each under two views
    assert not list(workspace.work.glob("features/*/features-*.npy"))
    assert "3 trials of head.strength" in output
    assert not list(workspace.work.glob("cache/*.npy"))  # no decoded images are kept
    assert set(workspace.scores["members"]) == {"linear", "rbf", "both"}
    assert workspace.scores["honest"] > 0.85  # features of a network with random weights
    before = workspace.submission()
    again = workspace.here("tune", "train", "predict", "blend")
    assert "features of" not in again and "held-out rows" not in again
    assert workspace.submission() == before
    other_folds = ["--set", "prepare.folds=4 tune.trials=0"]
    again = workspace.copy_to(tmp_path).do_in_one_process("prepare", "train", "predict", arguments=other_folds)
    assert "train rbf fold 3" in again and " images under " not in again


def test_a_strength_is_adopted_without_another_study_and_trial_0_brings_the_own_ones_back(frozen, tmp_path) -> None:
    workspace = frozen[0].copy_to(tmp_path)
    before = load_params(workspace.params).members["linear"]
    (best,) = (json.loads(path.read_text()) for path in workspace.work.glob("tune/linear/*/best.json"))
    workspace.here("adopt", trial="linear:2")
    adopted = load_params(workspace.params).members["linear"]
    assert adopted.head.strengths == (best["tried"]["2"]["head.strength"],)
    assert "members without a teacher and tuned_folds" in workspace.here("tune")
    assert "members.linear.head.strengths: [0.1, 1.0]" in workspace.here("adopt", trial="linear:0")
    assert load_params(workspace.params).members["linear"] == replace(before, tuned_folds=(0, 1))


def test_a_member_whose_weights_are_missing_leaves_no_run_and_a_stored_one_takes_no_features_of_other_networks(frozen):
    workspace = frozen[0]
    absent = "{architecture: cnn, image_size: 16, alpha: 0.5, weights: absent.weights.h5, head: {kind: rbf}}"
    refused = workspace.refused("train", "--member", "absent", sets=f"'members.absent={absent}'")
    assert "absent: cnn with weights 'absent.weights.h5'" in refused
    assert not (workspace.work / "members" / "absent").exists()
    (run,) = workspace.work.glob("members/both/*")
    sets = f"blend.members=[both@{run.name}] members.rbf.alpha=0.25 predict.views=[identity,shift_down]"
    assert "features of other networks than those that head.also names now" in workspace.refused("predict", sets=sets)


def test_columns_of_the_tables_decide_where_the_photos_say_nothing_and_a_changed_one_is_another_run(tmp_path) -> None:
    photos, names = tmp_path / "photos", [f"{n}.png" for n in range(60)]
    save_images(photos, names, np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), np.uint8))
    table = pd.DataFrame({"image": names, "label": ["a", "b", "c"] * 20, "site": ["x", "y", "z"] * 20})
    table[:45].to_csv(photos / "train.csv", index=False)
    table[45:].drop(columns="label").to_csv(photos / "test.csv", index=False)
    workspace = new_workspace(
        tmp_path,
        f"extends: {ROOT}/tests/small.yaml\ncompetition: {{adapter: folder, source: {photos}}}\nprepare: {{folds: 3}}\n"
        "members:\n  sited: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none, "
        "head: {kind: linear, strengths: [1.0], columns: [site]}}\n",
    )
    output = workspace.do_in_one_process("download", "prepare", "resolve", "train", "predict", "blend")
    assert "head.columns of a member can add 'site' to its features" in output
    assert workspace.scores["honest"] > 0.9
    refused = workspace.refused("predict_folder", "--folder", str(photos))
    assert "has head.columns, which new photos do not have" in refused
    columns = workspace.work / "data" / "columns.csv"
    columns.write_text(columns.read_text().replace("z", "x"))
    assert workspace.do("train").count("held-out rows") == 3
