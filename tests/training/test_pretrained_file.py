"""A network read from a .keras file or a KerasHub preset gives its own features, with its own normalisation."""

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
from small_engines import PARAMS, TRAIN

from competition.budget.portfolio import missing_weights
from competition.config.errors import UserError
from competition.config.params import Member
from competition.training.model import build

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)


def member_of(weights: Path | str, normalise: str = "auto", size: int = 16, **train: object) -> Member:
    cnn = replace(PARAMS.members["cnn"], image_size=size, train=replace(TRAIN, **train))
    return replace(cnn, architecture="from_file", weights=str(weights), normalise=normalise)


def features_of(member: Member) -> np.ndarray:
    images = IMAGES.repeat(member.image_size // 16, 1).repeat(member.image_size // 16, 2)
    model = build(member, 3)
    last = keras.Model(model.inputs, model.get_layer("logits").input)
    return np.asarray(last.predict_on_batch(images.astype(np.float32)))


def classifier(rescaling: bool = True, last: str = "softmax", name: str = "dense") -> keras.Model:
    """Two layers with weights; the features are the input of the last one."""
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Rescaling(1 / 255)(inputs) if rescaling else inputs
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(6, 3, strides=2)(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(5, activation=last, name=name)(x))


def saved(model: keras.Model, folder: Path) -> Path:
    model.save(folder / "model.keras")
    return folder / "model.keras"


@pytest.mark.parametrize(("last", "name", "width"), [("softmax", "x", 6), ("linear", "logits", 6), ("linear", "x", 5)])
def test_the_features_are_those_of_the_saved_model_without_a_last_layer_that_gives_classes(last, name, width, tmp_path):
    model = classifier(last=last, name=name)
    features = features_of(member_of(saved(model, tmp_path)))
    expected = keras.Model(model.inputs, model.layers[-1].output if width == 5 else model.layers[-1].input)
    np.testing.assert_allclose(features, expected.predict(IMAGES.astype(np.float32), verbose=0), atol=1e-5)
    assert features.shape == (4, width)


@pytest.mark.parametrize(
    ("normalise", "normalised"),
    [
        ("none", IMAGES),
        ("0..1", IMAGES / 255),
        ("-1..1", IMAGES / 127.5 - 1),
        ("imagenet", (IMAGES / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]),
        ("bgr", IMAGES[..., ::-1] - np.array([103.939, 116.779, 123.68])),
    ],
)
def test_a_model_without_normalisation_gets_the_stated_one(normalise, normalised, tmp_path):
    model = classifier(rescaling=False)
    backbone = keras.Model(model.inputs, model.layers[-1].input)
    expected = backbone.predict(normalised.astype(np.float32), verbose=0)
    features = features_of(member_of(saved(model, tmp_path), normalise))
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-3)


def test_the_weights_are_trained_with_the_options_of_any_network(tmp_path: Path) -> None:
    path = saved(classifier(), tmp_path)
    frozen = build(member_of(path, freeze_norm=True), 3)
    (norm,) = [layer for layer in frozen._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    assert not norm.trainable and norm.momentum == TRAIN.norm_momentum
    bfloat16 = build(member_of(path, precision="bfloat16"), 3)
    (conv,) = [layer for layer in bfloat16._flatten_layers() if isinstance(layer, keras.layers.Conv2D)]
    assert (conv.compute_dtype, conv.variable_dtype, bfloat16.output.dtype) == ("bfloat16", "float32", "float32")
    features = [features_of(member_of(path, precision=precision)) for precision in ("bfloat16", "float32")]
    np.testing.assert_allclose(*features, atol=0.02)


def test_a_lambda_layer_is_refused_before_it_runs(tmp_path: Path) -> None:
    inputs = keras.Input((16, 16, 3))
    path = saved(keras.Model(inputs, keras.layers.Lambda(lambda x: x * 2, output_shape=(16, 16, 3))(inputs)), tmp_path)
    with pytest.raises(UserError, match=r"weights '.*model\.keras': .*Lambda.*expected a model saved by model\.save"):
        build(member_of(path), 3)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("none.keras", {}, r"expected a \.keras file, or the folder of a KerasHub preset with config\.json; on Kaggle, attach"),
        ("", {}, r"expected a \.keras file, or the folder"),
        ("text.keras", {}, r"not a \.keras file"),
        ("model.keras", {}, "does not normalise pixels itself, so state how it was trained: `normalise: "),
        ("model.keras", {"normalise": "0..1", "size": 32}, r"takes images of \(16, 16, 3\), found \(32, 32, 3\); set image_size: 16"),
        ("model.keras", {"normalise": "0..1", "low_resolution_epochs": 0.5}, r"found \(None, None, 3\); set train\.low_resolution_"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(path: str, options: dict[str, object], message: str, tmp_path: Path) -> None:
    saved(classifier(rescaling=False), tmp_path)
    (tmp_path / "text.keras").write_text("no zip")
    with pytest.raises(UserError, match=message) as caught:
        build(member_of(tmp_path / path, **options), 3)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def hub() -> ModuleType:
    return pytest.importorskip("keras_hub", reason="presets need keras-hub (goldfold[hub])")


@pytest.fixture
def preset(hub: ModuleType, tmp_path: Path) -> Path:
    """A tiny vision transformer of random weights with the normalisation -1..1."""
    keras.utils.set_random_seed(0)
    sizes = {"patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    hub.models.ViTBackbone(image_shape=(16, 16, 3), **sizes).save_to_preset(str(tmp_path / "vit"))
    converter = {"config": {"scale": [1 / 127.5] * 3, "offset": [-1.0] * 3}, "class_name": "ViTImageConverter"}
    (tmp_path / "vit" / "image_converter.json").write_text(json.dumps(converter))
    return tmp_path / "vit"


def test_a_preset_gives_its_class_token_under_its_own_normalisation_or_needs_it_stated(hub, preset: Path) -> None:
    backbone = hub.models.Backbone.from_preset(str(preset))
    expected = backbone.predict(IMAGES.astype(np.float32) / 127.5 - 1, verbose=0)[:, 0]
    np.testing.assert_allclose(features_of(member_of(preset)), expected, atol=1e-5)
    (preset / "image_converter.json").unlink()
    with pytest.raises(UserError, match=r"the preset states no normalisation .* state `normalise: "):
        build(member_of(preset), 3)
    np.testing.assert_allclose(features_of(member_of(preset, "-1..1")), expected, atol=1e-5)


def test_a_swin_transformer_can_be_trained(hub: ModuleType, tmp_path: Path) -> None:
    sizes = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2), "window_size": 2, "patch_size": 2}
    hub.models.SwinTransformerBackbone(image_shape=(16, 16, 3), **sizes).save_to_preset(str(tmp_path))
    model = build(member_of(tmp_path, "imagenet"), 3)
    assert np.isfinite(np.asarray(model(IMAGES.astype(np.float32), training=True))).all()


def test_a_keras_file_with_layers_of_keras_hub_is_loaded(preset: Path, hub: ModuleType, tmp_path: Path) -> None:
    backbone = hub.models.Backbone.from_preset(str(preset))
    inputs = keras.Input((16, 16, 3))
    path = saved(keras.Model(inputs, backbone(keras.layers.Rescaling(1 / 127.5, -1.0)(inputs))[:, 0]), tmp_path)
    assert b"keras_hub" in zipfile.ZipFile(path).read("config.json")
    np.testing.assert_allclose(features_of(member_of(path)), features_of(member_of(preset)), atol=1e-5)


def test_a_whole_network_is_not_loaded_by_a_keras_with_known_vulnerabilities(tmp_path, monkeypatch):
    file = saved(classifier(), tmp_path)
    monkeypatch.setattr("keras.__version__", "3.13.0rc1")
    with pytest.raises(UserError, match=r"would be loaded by Keras 3.13.0rc1.*Keras 3.15.1 is expected"):
        features_of(member_of(file))


def test_a_preset_is_named_and_taken_from_the_cache_of_kagglehub(hub, preset, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing is downloaded
    name = "vit_base_patch16_224_imagenet21k"
    member = member_of(f"hub:{name}")
    assert missing_weights(member, lambda host: host == "www.kaggle.com") == ""
    assert "not on this machine, and there is no network" in missing_weights(member, lambda host: False)
    # Where kagglehub puts a model that it has downloaded completely.
    model = Path(hub.models.Backbone.presets[name]["kaggle_handle"].removeprefix("kaggle://"))
    shutil.copytree(preset, tmp_path / "cache" / "models" / model)
    (tmp_path / "cache" / "models" / model.parent / f"{model.name}.complete").touch()
    np.testing.assert_array_equal(features_of(member), features_of(member_of(preset)))
    assert missing_weights(member, lambda host: False) == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_base_patch16_224_imagenet12k", "no such preset; did you mean 'vit_base_patch16_224_imagenet21k'"),
        (str(Path(__file__).parent), "no such preset; state this folder without hub:"),
        ("dinov2_base", r"Kaggle model keras/dinov2/keras/dinov2_base/\d+ cannot be had \(.+\); on Kaggle attach it"),
    ],
)
def test_a_preset_that_cannot_be_had_is_one_sentence(name, message, hub, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=message) as caught:
        build(member_of(f"hub:{name}"), 3)
    assert "\n" not in str(caught.value)


def position_table(model: keras.Model) -> keras.Variable:
    return next(one for one in model.weights if "position_embedding" in one.path)


def test_at_another_size_the_place_of_a_patch_keeps_its_meaning(hub: ModuleType, preset: Path, tmp_path: Path) -> None:
    """Position embeddings that grow from left to right do so at twice the size; the class token keeps its own."""
    backbone = hub.models.Backbone.from_preset(str(preset))
    grid = np.broadcast_to(np.arange(4.0)[None, :, None], (4, 4, 8))
    position_table(backbone).assign(np.concatenate([np.full((1, 8), 9.0), grid.reshape(16, 8)]))
    backbone.save_to_preset(str(tmp_path / "ramp"))
    (tmp_path / "ramp" / "image_converter.json").write_text((preset / "image_converter.json").read_text())
    table = np.asarray(position_table(build(member_of(tmp_path / "ramp", size=32), 3)))
    assert table[0] == pytest.approx(9.0)
    columns = table[1:].reshape(8, 8, 8)[:, :, 0]
    assert (np.diff(columns) > 0).all() and np.allclose(columns, columns[:1], atol=1e-4)
    assert columns[0, [0, -1]] == pytest.approx([0, 3], abs=0.3)
    with pytest.raises(UserError, match="should be divisible by patch size 4"):
        build(member_of(preset, size=18), 3)


def test_the_part_for_images_of_a_network_for_images_and_texts_is_used(hub: ModuleType, tmp_path: Path) -> None:
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    images = hub.models.SigLIPVisionEncoder(patch_size=4, image_shape=(16, 16, 3), **sizes)
    texts = hub.models.SigLIPTextEncoder(vocabulary_size=20, embedding_dim=8, max_sequence_length=4, **sizes)
    hub.models.SigLIPBackbone(images, texts).save_to_preset(str(tmp_path))
    expected = images.predict({"images": IMAGES.astype(np.float32) / 127.5 - 1}, verbose=0)
    features = features_of(member_of(tmp_path, "-1..1"))
    np.testing.assert_allclose(features, expected if expected.ndim == 2 else expected.mean(1), atol=1e-5)
    assert np.isfinite(features_of(member_of(tmp_path, "-1..1", size=32))[:1]).all()
