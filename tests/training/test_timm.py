"""Frozen networks of timm: PyTorch computes the features, heads and everything else are as of other frozen members."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import ROOT, member, pixels_of
from stages import Workspace

from competition.config.errors import UserError
from competition.config.params import Head
from competition.ensemble.view_transforms import VIEWS
from competition.files.image_codec import encode
from competition.input_pipeline.labelled_images import Images
from competition.training.features import compute_features

HEAD = "head: {kind: linear, views: [identity, flip_lr]}"
with_timm = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("timm", "torch")), reason="goldfold[timm] is not installed"
)


def engine_of(architecture: str = "timm:test_vit", weights: object = "none"):
    from competition.training.timm_features import TimmEngine

    stated = {"architecture": architecture, "weights": str(weights), "image_size": 32, "head": Head("linear")}
    return TimmEngine(replace(member(), **stated), 4)


@with_timm
def test_features_are_those_of_timm_in_the_order_of_the_rows_under_every_view() -> None:
    import timm
    import torch

    engine = engine_of()
    pixels = pixels_of(np.arange(11) % 3, seed=1, size=32)
    images = Images(np.arange(11).astype(str), pixels, np.zeros(11, int), np.zeros(11, int), np.arange(11) != 4)
    rows = np.array([9, 4, 0, 7, 3, 10])
    features = compute_features(engine, images, rows, [VIEWS["identity"], VIEWS["flip_lr"]])
    torch.manual_seed(member().train.seed)
    network = timm.create_model("test_vit", num_classes=0).eval()
    network.set_input_size(img_size=32)
    scaled = torch.tensor(pixels[rows] / 255.0, dtype=torch.float32).permute(0, 3, 1, 2)
    mean, deviation = (torch.tensor(network.pretrained_cfg[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        views = [(x - mean) / deviation for x in (scaled, scaled.flip(3))]
        # What its last layer reads, the class token, and the mean of the patches.
        patches = [network.forward_features(x)[:, network.num_prefix_tokens :].mean(1) for x in views]
        expected = [torch.cat([network(x), means], 1).numpy() for x, means in zip(views, patches, strict=True)]
    readable = images.readable[rows]
    for view in (0, 1):
        np.testing.assert_allclose(features[readable, view], expected[view][readable], atol=2e-4)
    assert not features[~readable].any()


@with_timm
def test_pytorch_can_be_loaded_after_tensorflow_was_started() -> None:
    code = "from competition.training.backend import start_backend; start_backend('tensorflow'); import timm"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@with_timm
def test_weights_come_from_a_safetensors_file_with_its_last_layer_or_the_file_is_refused(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    file = tmp_path / "net.safetensors"
    save_file(timm.create_model("test_convnext", num_classes=1000).state_dict(), str(file))
    pixels = pixels_of(np.arange(3), seed=1, size=32)
    images = Images(np.arange(3).astype(str), pixels, np.zeros(3, int), np.zeros(3, int), np.ones(3, bool))

    def features(weights: object) -> np.ndarray:
        return compute_features(engine_of("timm:test_convnext", weights), images, np.arange(3), [VIEWS["identity"]])

    loaded = features(file)
    assert np.array_equal(loaded, features(file)) and not np.allclose(loaded, features("none"))
    with pytest.raises(UserError, match=r"weights .*net.safetensors cannot be loaded"):
        engine_of(weights=file)
    with pytest.raises(UserError, match=r"timm .* has no network of this name; did you mean 'test_vit'"):
        engine_of("timm:test_vitt")


@with_timm
def test_a_member_of_timm_takes_the_whole_main_job_and_new_images_its_way(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.params.write_text(
        f"extends: {ROOT}/params.yaml\ncompetition: {{name: small}}\nprepare: {{folds: 3}}\ntune: {{trials: 0}}\n"
        f"members:\n  vit: {{architecture: 'timm:test_vit', image_size: 32, alpha: 1.0, weights: none, {HEAD}}}\n"
        "predict: {views: [identity, flip_lr]}\nhonest: {resamples: 50}\n"
    )
    output = workspace.do_in_one_process("download", "prepare", "resolve", "train", "predict", "blend")
    assert "vit: features of 1,347 train images under 'identity', " in output and "honest macro_f1" in output
    refused = workspace.refused("export")
    assert "timm:test_vit is computed by PyTorch" in refused and "make predict-folder" in refused


@with_timm
def test_the_example_of_fine_tuning_in_timm_runs_and_its_predictions_are_those_of_the_held_out_rows(tmp_path):
    """docs/external_predictions.md with a tiny network without weights, on photos whose colour shows their class."""
    text = (ROOT / "docs" / "external_predictions.md").read_text(encoding="utf-8")
    text = text[text.index("# Begin (tested)") : text.index("### fastai")]
    blocks = [text.partition("```")[0], *re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    labels = np.arange(12) % 3
    (tmp_path / "work" / "photos").mkdir(parents=True)
    for number, pixels in enumerate(pixels_of(labels, size=40)):
        (tmp_path / f"{number}.png").write_bytes(encode(pixels, "png"))
    lines = [f"{n},{'abc'[label]},{n // 6},{n},{tmp_path}/{n}.png" for n, label in enumerate(labels)]
    (tmp_path / "work" / "photos" / "folds.csv").write_text("\n".join(["id,label,fold,group,file", *lines]) + "\n")
    (tmp_path / "work" / "photos" / "test_ids.csv").write_text(f"id,file\nt,{tmp_path}/0.png\n")
    code = "\n".join(blocks).replace("convnext_tiny.fb_in22k_ft_in1k", "test_vit")
    code = code.replace("pretrained=True", "pretrained=False")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=250)
    with np.load(tmp_path / "torch_oof.npz") as oof, np.load(tmp_path / "torch_test.npz") as test:
        assert oof["probs"].shape == (12, 3) and np.allclose(oof["probs"].sum(1), 1, atol=1e-5)
        assert oof["ids"].tolist() == [str(n) for n in range(12)] and test["probs"].shape == (2, 1, 3)
