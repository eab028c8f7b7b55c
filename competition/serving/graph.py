"""The whole chain as TensorFlow functions: images -> views -> fold models -> temperature -> blend -> decision rule.

The same steps as `competition.ensemble.chain.apply_chain` in float32, without rounding predictions to float16 in between.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from competition.config.errors import UserError
from competition.config.params import Member
from competition.ensemble.chain import Chain
from competition.ensemble.mixing import FLOOR
from competition.ensemble.views import get_views
from competition.prepare.decoding import Fit
from competition.serving.decoding import decode_batch, resize
from competition.serving.selection import Selection
from competition.training.checkpoint import load_arrays
from competition.training.engine import apply_view, check_state, saved_variables
from competition.training.head_trainer import network_with_head
from competition.training.model import build

Outputs = dict[str, Any]  # probabilities (B, C) float32, class_id (B,) int64, class_name (B,) string


def input_name(size: int) -> str:
    """Name of the input that takes images of this side."""
    return f"images_{size}"


def load_model(member: Member, classes: int, arrays: Mapping[str, np.ndarray]) -> keras.Model:
    """The network of a fold model from its weights, which any backend may have trained; computes in float32."""
    train = replace(member.train, precision="float32", low_resolution_epochs=0.0)
    if member.head is not None:
        if member.head.also:
            raise UserError(
                "a member with head.also has features of several networks, which cannot be exported as one model"
            )
        return network_with_head(replace(member, train_size=0, train=train), arrays, "single")
    model = build(replace(member.without_pretrained_weights, train_size=0, train=train), classes)
    variables = saved_variables(model)
    check_state({name: tuple(variable.shape) for name, variable in variables}, dict(arrays))
    for name, variable in variables:
        variable.assign(arrays[name])
    return model


class ExportedChain(tf.Module):
    """The networks of a selection and the functions that become the signatures of a SavedModel."""

    def __init__(self, selection: Selection, class_names: Sequence[str], fit: Fit) -> None:
        """Raises UserError on another Keras backend than TensorFlow, which alone writes a SavedModel."""
        super().__init__()
        if keras.backend.backend() != "tensorflow":
            raise UserError(f"an export needs Keras on TensorFlow, found {keras.backend.backend()}; set KERAS_BACKEND")
        self._chain, self._fit, self._sizes = selection.chain, fit, selection.sizes
        self._member_sizes = {name: member.image_size for name, member in selection.members.items()}
        self.networks = {
            name: [load_model(member, len(class_names), load_arrays(path)) for path in selection.weights[name].values()]
            for name, member in selection.members.items()
        }
        self.class_names = tf.constant(list(class_names))
        first = self.networks[selection.features_of][0]
        self._feature_network = keras.Model(first.inputs, first.get_layer("logits").input)
        self._features_size = selection.features_size

    def signatures(self) -> dict[str, Any]:
        """Name -> concrete function: serving_default (encoded images), images (any size), pixels (exact sizes), features."""
        pixels = {
            input_name(size): tf.TensorSpec((None, size, size, 3), tf.uint8, input_name(size)) for size in self._sizes
        }
        functions = {
            "serving_default": (self._from_bytes, {"image_bytes": tf.TensorSpec((None,), tf.string, "image_bytes")}),
            "images": (self._from_images, {"images": tf.TensorSpec((None, None, None, 3), tf.uint8, "images")}),
            "pixels": (self._from_pixels, pixels),
            "features": (
                self._features_from_pixels,
                {name: pixels[name] for name in [input_name(self._features_size)]},
            ),
        }
        return {
            name: tf.function(function, autograph=False).get_concrete_function(**inputs)
            for name, (function, inputs) in functions.items()
        }

    def numbers(self, reshape: Callable[[Any], Any] = lambda features: features) -> tuple[Any, list[Any]]:
        """(function, its input signature): `pixels` and `features` without class names, for runtimes without strings.

        reshape: applied to the features.
        """
        inputs = [tf.TensorSpec((None, size, size, 3), tf.uint8, input_name(size)) for size in self._sizes]

        def numbers(*images: Any) -> Outputs:
            pixels = dict(zip(self._sizes, images, strict=True))
            features = reshape(self._features(pixels[self._features_size]))
            return {**self._outputs(pixels), "features": tf.identity(features, "features")}

        return tf.function(numbers, autograph=False), inputs

    def _from_bytes(self, image_bytes: Any) -> Outputs:
        decoded = decode_batch(image_bytes, self._sizes, self._fit)
        return self._named(dict(zip(self._sizes, decoded, strict=True)))

    def _from_images(self, images: Any) -> Outputs:
        return self._named({size: resize(images, size, self._fit) for size in self._sizes})

    def _from_pixels(self, **images: Any) -> Outputs:
        return self._named({size: images[input_name(size)] for size in self._sizes})

    def _features_from_pixels(self, **images: Any) -> Outputs:
        return {"features": self._features(images[input_name(self._features_size)])}

    def _features(self, images: Any) -> Any:
        """(B, F) float32 of unit length: what the last layer of one fold model reads."""
        return tf.math.l2_normalize(self._feature_network(tf.cast(images, tf.float32), training=False), 1)

    def _named(self, pixels: Mapping[int, Any]) -> Outputs:
        outputs = self._outputs(pixels)
        return {**outputs, "class_name": tf.gather(self.class_names, outputs["class_id"])}

    def _outputs(self, pixels: Mapping[int, Any]) -> Outputs:
        """pixels: side -> (B, side, side, 3) uint8."""
        members = {name: self._member_probs(name, pixels[size]) for name, size in self._member_sizes.items()}
        probs = blended(self._chain, members)
        return {"probabilities": tf.identity(probs, "probabilities"), "class_id": decided(self._chain, probs)}

    def _member_probs(self, name: str, images: Any) -> Any:
        """(B, C) float32 of one member: its views, its temperature."""
        policy = self._chain.policies[name]
        views = [apply_view(view)(images) for view in get_views(list(policy))]
        models = self.networks[name]
        by_view = [
            tf.add_n([tf.nn.softmax(model(view, training=False)) for model in models]) / len(models) for view in views
        ]
        weights, mixing = list(policy.values()), self._chain.view_mixing
        mixed = by_view[0] if len(by_view) == 1 else weighted_mean(by_view, weights, mixing, ())
        temperature = self._chain.temperatures[name]
        return mixed if temperature == 1.0 else tf.nn.softmax(floored_logs(mixed) / temperature)


def blended(chain: Chain, members: Mapping[str, Any]) -> Any:
    """(B, C) float32: `Blend.mix`.  members: name -> (B, C)."""
    used = [name for name, weight in chain.blend.weights.items() if weight]
    weights = [chain.blend.weights[name] for name in used]
    return weighted_mean([members[name] for name in used], weights, chain.blend.mixing, chain.blend.offsets)


def decided(chain: Chain, probs: Any) -> Any:
    """(B, C) -> (B,) int64 class numbers: `Decision.labels`."""
    decision = chain.decision
    if decision.thresholds:
        expected = tf.reduce_sum(probs * tf.range(probs.shape[1], dtype=tf.float32), 1, keepdims=True)
        above = expected >= tf.constant([decision.thresholds], tf.float32)
        return tf.reduce_sum(tf.cast(above, tf.int64), 1, name="class_id")
    scores = floored_logs(probs) + tf.constant([decision.offsets], tf.float32) if decision.offsets else probs
    return tf.argmax(scores, 1, name="class_id")


def weighted_mean(parts: Sequence[Any], weights: Sequence[float], mixing: str, offsets: Sequence[float]) -> Any:
    """(B, C) float32: `mixing.mix` for "mean" and "geometric"."""
    if mixing not in ("mean", "geometric"):
        raise UserError(f"mixing '{mixing}' cannot be exported; expected mean or geometric")
    values = [floored_logs(part) for part in parts] if mixing == "geometric" else list(parts)
    mixed = tf.add_n([weight * value for weight, value in zip(weights, values, strict=True)])
    if offsets:
        mixed += tf.constant([offsets], tf.float32)
    return tf.nn.softmax(mixed) if mixing == "geometric" else mixed / tf.reduce_sum(mixed, 1, keepdims=True)


def floored_logs(probs: Any) -> Any:
    return tf.math.log(tf.maximum(probs, FLOOR))
