"""Batch normalisation as one operation of TensorFlow, for one CPU.

Keras 3 computes moments, normalisation and their gradients by some twenty operations that each read the whole activation.
TensorFlow's fused operation reads it two to three times: a step of MobileNetV2 at 128 pixels takes two thirds of the time,
its first step, which traces and optimises the graph, half (docs/speed.md). XLA fuses on GPUs and TPUs by itself.
"""

from typing import Any

import keras
import tensorflow as tf


def fuse_batch_norm(model: keras.Model) -> None:
    """Let every batch normalisation of the last axis of (B, H, W, C) activations compute by the fused operation.

    Weights, names and results (up to float32 rounding) stay the same. Not for several replicas, whose statistics it does not combine.
    """
    for layer in model._flatten_layers():
        has_renorm = getattr(layer, "renorm", False)  # an option of Keras 3.14 and later
        if type(layer) is keras.layers.BatchNormalization and layer.axis in (-1, 3) and not has_renorm:
            layer.__class__ = FusedBatchNormalization


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """The layer of Keras; activations are not converted to float32, statistics are float32 in every precision."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        uses_batch = bool(training) and self.trainable
        if len(inputs.shape) != 4 or mask is not None or uses_batch != bool(training):
            return super().call(inputs, training=training, mask=mask)
        channels, none = inputs.shape[-1], tf.zeros((0,))
        output, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=self.gamma.value if self.scale else tf.ones((channels,)),
            offset=self.beta.value if self.center else tf.zeros((channels,)),
            mean=none if uses_batch else self.moving_mean.value,
            variance=none if uses_batch else self.moving_variance.value,
            epsilon=self.epsilon,
            is_training=uses_batch,
        )
        if uses_batch:
            size = inputs.shape.num_elements() or tf.cast(tf.size(inputs), tf.float32)
            biased = variance * (1.0 - channels / size)  # Keras follows the biased variance
            for moving, new in ((self.moving_mean.value, mean), (self.moving_variance.value, biased)):
                moving.assign_sub((moving - new) * (1.0 - self.momentum))
        return output
