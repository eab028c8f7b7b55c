"""The whole chain as TensorFlow functions: images -> views -> fold models -> blend -> decision rule.

The same steps as `competition.ensemble.chain.apply_chain` in float32, without rounding predictions to float16 in between.
"""

from collections.abc import Sequence
from dataclasses import replace

import keras
import tensorflow as tf

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.params import Member
from competition.config.plugins import Plugins
from competition.ensemble.chain import Chain
from competition.ensemble.mixing import FLOOR
from competition.ensemble.view_transforms import get_views
from competition.serving.served_models import Selection
from competition.training.checkpoint import load_arrays
from competition.training.engine import State, apply_views, check_state, saved_variables
from competition.training.features import feature_network
from competition.training.head_trainer import HeadLayer, network_with_head
from competition.training.model import build
from competition.workspace.studies import network_dependencies

Outputs = dict[str, tf.Tensor]  # probabilities (B, C) float32, class_id (B,) int64, features (B, F) float32


def in_float32(member: Member) -> Member:
    """The member as it is exported: whatever precision and sizes its training had, it computes in float32."""
    train = replace(member.train, precision="float32", low_resolution_epochs=0.0)
    return replace(member, train_size=0, train=train)


def load_model(member: Member, classes: int, arrays: State, plugins: Plugins) -> keras.Model:
    """The network of a fold model from its weights, which any backend may have trained; computes in float32."""
    if member.head is not None:
        return network_with_head(in_float32(member), arrays, "single", plugins)
    model = build(in_float32(member.without_pretrained_weights), classes, plugins=plugins)
    variables = saved_variables(model)
    check_state(dict(variables), arrays)
    for name, variable in variables:
        variable.assign(arrays[name])
    return model


class ExportedChain(tf.Module):
    """The networks of a selection and the functions that become the signatures of a SavedModel, and the ONNX file."""

    def __init__(self, selection: Selection, classes: int, plugins: Plugins) -> None:
        """classes: their number.  Raises UserError on another Keras backend than TensorFlow, which alone writes a SavedModel."""
        super().__init__()
        if keras.backend.backend() != "tensorflow":
            raise UserError(f"an export needs Keras on TensorFlow, found {keras.backend.backend()}; set KERAS_BACKEND")
        self._chain = selection.chain
        self._views = {name: get_views(list(policy), plugins) for name, policy in selection.chain.policies.items()}
        self._member_sizes = {name: member.image_size for name, member in selection.members.items()}
        # Member -> its fold models. Those of a frozen-feature member are heads on a network that members may share.
        self.models: dict[str, list[keras.Model | HeadLayer]] = {}
        self.frozen_networks: dict[str, keras.Model] = {}  # by digest
        self._network_of: dict[str, str] = {}  # frozen-feature member -> digest of its network
        for name, member in selection.members.items():
            arrays = [load_arrays(path) for path in selection.weights[name].values()]
            if member.head is None:
                self.models[name] = [load_model(member, classes, each, plugins) for each in arrays]
                continue
            if member.head.also or member.head.columns:
                raise UserError(
                    f"{name}: a member with head.also or head.columns is no single model of images; export another one: MEMBER=..."
                )
            self._network_of[name] = digest = digest_of(network_dependencies(member))
            if digest not in self.frozen_networks:
                self.frozen_networks[digest] = feature_network(in_float32(member), plugins)
            self.models[name] = [HeadLayer(each, "single") for each in arrays]
        # The features of an image are those of the first fold model of the member of the largest weight.
        name = max(selection.members, key=lambda name: selection.chain.blend.weights[name])
        if name in self._network_of:
            self._feature_network = self.frozen_networks[self._network_of[name]]
        else:
            model = self.models[name][0]
            self._feature_network = keras.Model(model.inputs, model.get_layer("logits").input)
        # Side of the images -> the input that takes them.
        sizes = sorted(set(self._member_sizes.values()))
        self.inputs = {size: tf.TensorSpec((None, size, size, 3), tf.uint8, f"images_{size}") for size in sizes}
        self.features_size = self._member_sizes[name]

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Those of the SavedModel: serving_default (images_S for each size S -> `predict`), and features (one of them)."""
        of_features, pixels = self.inputs[self.features_size], {spec.name: spec for spec in self.inputs.values()}
        serving_default = tf.function(lambda **images: self.predict([images[name] for name in pixels]), autograph=False)
        features = tf.function(lambda **images: {"features": self._features(images[of_features.name])}, autograph=False)
        return {
            "serving_default": serving_default.get_concrete_function(**pixels),
            "features": features.get_concrete_function(**{of_features.name: of_features}),
        }

    def _features(self, images: tf.Tensor) -> tf.Tensor:
        """(B, F) float32 of unit length: what the last layer of one fold model reads."""
        return tf.math.l2_normalize(self._feature_network(tf.cast(images, tf.float32), training=False), 1)

    def predict(self, images: Sequence[tf.Tensor], with_features: bool = False) -> Outputs:
        """images: (B, S, S, 3) uint8 for each S of `inputs`.  with_features: whether the outputs of both signatures are returned."""
        pixels = dict(zip(self.inputs, images, strict=True))
        features: dict[tuple[str, str], tf.Tensor] = {}
        members = {name: self._member_probs(name, pixels[size], features) for name, size in self._member_sizes.items()}
        used = [name for name, weight in self._chain.blend.weights.items() if weight]
        blend, parts = self._chain.blend, [members[name] for name in used]
        probs = weighted_mean(parts, [blend.weights[name] for name in used], blend.mixing)
        outputs = {"probabilities": tf.identity(probs, "probabilities"), "class_id": decided(self._chain, probs)}
        if with_features:
            outputs["features"] = tf.identity(self._features(pixels[self.features_size]), "features")
        return outputs

    def _member_probs(self, name: str, images: tf.Tensor, features: dict[tuple[str, str], tf.Tensor]) -> tf.Tensor:
        """(B, C) float32 of one member: its views.

        features: (digest of a frozen network, view) -> (B, F), computed once for all fold models and members.
        """
        policy, models, by_view = self._chain.policies[name], self.models[name], []
        for view, inputs in zip(policy, apply_views(self._views[name])(images), strict=True):
            if name in self._network_of:
                digest = self._network_of[name]
                if (digest, view) not in features:
                    features[digest, view] = self.frozen_networks[digest](inputs, training=False)
                inputs = features[digest, view]
            by_view.append(tf.add_n([tf.nn.softmax(model(inputs, training=False)) for model in models]) / len(models))
        return by_view[0] if len(by_view) == 1 else weighted_mean(by_view, list(policy.values()), "mean")


def decided(chain: Chain, probs: tf.Tensor) -> tf.Tensor:
    """(B, C) -> (B,) int64 class numbers: `Decision.labels`."""
    decision = chain.decision
    if decision.thresholds:
        expected = tf.reduce_sum(probs * tf.range(probs.shape[1], dtype=tf.float32), 1, keepdims=True)
        above = expected >= tf.constant([decision.thresholds], tf.float32)
        return tf.reduce_sum(tf.cast(above, tf.int64), 1, name="class_id")
    scores = probs
    if decision.offsets:
        scores = tf.math.log(tf.maximum(probs, FLOOR)) + tf.constant([decision.offsets], tf.float32)
    return tf.argmax(scores, 1, name="class_id")


def weighted_mean(parts: Sequence[tf.Tensor], weights: Sequence[float], mixing: str) -> tf.Tensor:
    """(B, C) float32: `mixing.mix` for "mean" and "geometric", those of classes that exclude each other."""
    values = [tf.math.log(tf.maximum(part, FLOOR)) for part in parts] if mixing == "geometric" else list(parts)
    mixed = tf.add_n([weight * value for weight, value in zip(weights, values, strict=True)])
    return tf.nn.softmax(mixed) if mixing == "geometric" else mixed / tf.reduce_sum(mixed, 1, keepdims=True)
