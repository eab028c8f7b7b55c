"""The exported graph computes what `apply_chain` computes, for every kind of chain that can be served."""

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import member, params, pixels_of

from competition.config.params import Head, Member
from competition.ensemble.blend_weights import Blend
from competition.ensemble.chain import Chain, apply_chain
from competition.ensemble.decision import ARGMAX, Decision
from competition.ensemble.stored_predictions import ViewPredictions
from competition.ensemble.view_transforms import get_views
from competition.serving.graph import ExportedChain, load_model
from competition.serving.served_models import Selection
from competition.serving.writing import onnx_model
from competition.training.checkpoint import load_arrays, save_arrays
from competition.training.engine import saved_variables
from competition.training.features import feature_network
from competition.training.heads import HeadRows, fit_path
from competition.training.model import build

CLASSES, ROWS = ("ash", "beech", "chestnut"), 24
MEMBERS = {"small": replace(member(), image_size=16), "large": replace(member(seed=3), image_size=24)}
FLIPPED = {"identity": 0.7, "flip_lr": 0.3}
POLICIES = {"small": FLIPPED, "large": {"scale_110": 0.5, "shift_up": 0.25, "brighter_10": 0.25}}
CHAINS = {
    "stacking, prior": Chain(
        "macro_f1", POLICIES,
        Blend("stacking", "geometric", {"small": 0.9, "large": 1.4}), Decision("prior", (0.0, 0.1, 0.05), (), 0.5),
    ),
    "mean, thresholds": Chain(
        "quadratic_kappa", POLICIES,
        Blend("equal", "mean", {"small": 0.25, "large": 0.75}), Decision("thresholds", (), (0.9, 1.1), 0.0),
    ),
    "one member": Chain(
        "macro_f1", {"small": {"flip_lr": 1.0}, "large": {"shift_up": 1.0}},
        Blend("best", "mean", {"small": 0.0, "large": 1.0}), ARGMAX,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, dict[int, Path]]:
    """Two fold models of each member with random weights, and biases under which every class is predicted."""
    folder, files = tmp_path_factory.mktemp("weights"), {}
    for name, each in MEMBERS.items():
        images = pixels(each.image_size).astype(np.float32)
        for fold in range(2):
            model, rng = build(each, len(CLASSES)), np.random.default_rng([fold, each.image_size])
            for _, variable in saved_variables(model):
                variable.assign(np.abs(variable + rng.normal(0, 0.1, variable.shape)))
            kernel, bias = model.get_layer("logits").weights
            bias.assign(np.zeros(len(CLASSES)))
            outputs = model(images)
            kernel.assign(kernel * (4 / np.std(outputs - np.mean(outputs, 0))))
            bias.assign(-np.mean(model(images), 0))
            files.setdefault(name, {})[fold] = folder / f"{name}{fold}.npz"
            save_arrays(files[name][fold], {key: v.numpy() for key, v in saved_variables(model)})
    return files


def pixels(size: int) -> np.ndarray:
    return pixels_of(np.arange(ROWS) % len(CLASSES), seed=size, size=size)


@pytest.fixture(scope="module")
def predictions(weights) -> dict[str, ViewPredictions]:
    """Of each member under every view of its policy: view by view and model by model, in float32."""
    return {name: predicted(each, weights[name], tuple(POLICIES[name])) for name, each in MEMBERS.items()}


def predicted(member: Member, files: dict[int, Path], views: tuple[str, ...]) -> ViewPredictions:
    models = [load_model(member, len(CLASSES), load_arrays(path), params().plugins) for path in files.values()]
    images = tf.cast(pixels(member.image_size), tf.float32)
    functions = get_views(views, params().plugins)
    by_view = [np.mean([tf.nn.softmax(model(view(images))) for model in models], 0) for view in functions]
    return ViewPredictions(np.arange(ROWS).astype(str), views, np.stack(by_view, 1))


def with_fitted_rule(chain: Chain, predictions: dict[str, ViewPredictions]) -> Chain:
    """The chain with offsets or thresholds under which the rows get several classes."""
    if chain.decision == ARGMAX:
        return chain
    probs, _ = apply_chain(replace(chain, decision=ARGMAX), predictions)
    if chain.decision.thresholds:
        thresholds = np.quantile(probs @ np.arange(len(CLASSES)), [0.35, 0.65])
        return replace(chain, decision=replace(chain.decision, thresholds=tuple(thresholds.tolist())))
    return replace(chain, decision=replace(chain.decision, offsets=tuple((-np.log(probs).mean(0)).tolist())))


def exported_chain(chain: Chain, members, weights, predictions) -> ExportedChain:
    """The exported chain, after both outputs were compared with those of `chain`."""
    selected = Selection("the blend", chain, members, weights, {}, True)
    exported = ExportedChain(selected, len(CLASSES), params().plugins)
    outputs = exported.predict([tf.constant(pixels(size)) for size in exported.inputs])
    probs, labels = apply_chain(chain, predictions)
    np.testing.assert_allclose(outputs["probabilities"], probs, atol=1e-5)
    np.testing.assert_array_equal(outputs["class_id"], labels)
    return exported


@pytest.mark.parametrize("name", CHAINS)
def test_probabilities_and_labels_are_those_of_the_chain(weights, predictions, name) -> None:
    chain = with_fitted_rule(CHAINS[name], predictions)
    members = {name: MEMBERS[name] for name in chain.blend.used}
    exported_chain(chain, members, {name: weights[name] for name in members}, predictions)
    probs, labels = apply_chain(chain, predictions)
    assert len(set(labels.tolist())) > 1  # a constant answer would prove nothing
    assert (chain.decision == ARGMAX) == bool((labels == probs.argmax(1)).all())  # a rule changes some label


def test_members_with_heads_on_one_network_share_its_pass_over_an_image(tmp_path) -> None:
    members = {kind: replace(MEMBERS["small"], head=Head(kind)) for kind in ("linear", "mlp")}
    network, policy = feature_network(members["linear"]), FLIPPED
    features = np.asarray(network(pixels(16).astype(np.float32)))
    labels, files = np.arange(ROWS) % len(CLASSES), dict[str, dict[int, Path]]()
    for name, each in members.items():
        files[name] = {fold: tmp_path / f"{name}{fold}.npz" for fold in range(2)}
        for fold, path in files[name].items():
            rows = HeadRows(features[None, fold:], labels[fold:], np.ones(ROWS - fold), len(CLASSES), "single")
            save_arrays(path, dict(fit_path(each.head, rows, [1.0], fold)[0]))
    ones = dict.fromkeys(members, 1.0)
    chain = Chain("macro_f1", dict.fromkeys(members, policy), Blend("equal", "mean", ones), ARGMAX)
    predictions = {name: predicted(each, files[name], tuple(policy)) for name, each in members.items()}
    exported = exported_chain(chain, members, files, predictions)
    function = tf.function(lambda *images: exported.predict(images, with_features=True), autograph=False)
    # Two views, and the features that are returned: not times the members and the fold models.
    operations = [one.type for one in function.get_concrete_function(*exported.inputs.values()).graph.get_operations()]
    convolutions = sum(isinstance(layer, keras.layers.Conv2D) for layer in network.layers)
    assert convolutions and operations.count("Conv2D") == 3 * convolutions


class Positions(keras.layers.Layer):
    """Adds a learned vector to each position, as the vision transformers of KerasHub do."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = keras.layers.Embedding(shape[1], shape[2])
        self.table.build((1, shape[1]))
        self.positions = keras.ops.expand_dims(keras.ops.arange(shape[1]), 0)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.table(self.positions)


def test_the_constants_of_a_position_embedding_are_no_inputs_of_the_onnx_file() -> None:
    inputs = keras.Input((16, 16, 3))
    patches = keras.layers.Reshape((16, 8))(keras.layers.Conv2D(8, 4, strides=4)(inputs))
    network = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(Positions()(patches)))
    function = tf.function(lambda images: network(tf.cast(images, tf.float32)), autograph=False)
    spec = tf.TensorSpec((None, 16, 16, 3), tf.uint8, "images")
    onnxruntime = pytest.importorskip("onnxruntime", reason="goldfold[onnx] is not installed")
    session = onnxruntime.InferenceSession(onnx_model(function, [spec]))  # tf2onnx alone makes the constant an input
    assert [each.name for each in session.get_inputs()] == ["images"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    (output,) = session.run(None, {"images": pixels})
    np.testing.assert_allclose(output, function(pixels), rtol=1e-4, atol=1e-4)
