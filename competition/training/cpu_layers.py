"""Layers of Keras that TensorFlow computes faster on one CPU in another way: convolutions of one pixel, batch normalisation.

Weights, names and results (up to float32 rounding) stay the same. XLA, on GPUs and TPUs, needs neither.
"""

from typing import Any

import keras
import tensorflow as tf


def use_cpu_layers(model: keras.Model) -> None:
    """Replace the layers of a model that are faster in another way. Not for several replicas, whose statistics are not combined.

    Batch normalisation of the last axis: Keras 3 computes moments, normalisation and their gradients by some twenty operations that each
    read the whole activation; TensorFlow's fused operation reads it two to three times. A step of MobileNetV2 at 128 pixels takes two
    thirds of the time, its first step, which traces and optimises the graph, half (docs/speed.md).
    Convolutions of one pixel: TensorFlow computes their gradients as those of any convolution, which takes up to three times as long as two
    matrix products. A step of MobileNet at 128 pixels takes two thirds of the time.
    """
    for layer in model._flatten_layers():
        has_renorm = getattr(layer, "renorm", False)  # an option of Keras 3.14 and later
        if type(layer) is keras.layers.BatchNormalization and layer.axis in (-1, 3) and not has_renorm:
            layer.__class__ = FusedBatchNormalization
        is_pointwise = type(layer) is keras.layers.Conv2D and (layer.kernel_size, layer.strides) == ((1, 1), (1, 1))
        if is_pointwise and layer.groups == 1 and layer.data_format == "channels_last":
            layer.__class__ = PointwiseConv2D


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


class PointwiseConv2D(keras.layers.Conv2D):
    """The layer of Keras with a kernel of one pixel, whose gradients are matrix products."""

    def convolution_op(self, inputs: Any, kernel: Any) -> tf.Tensor:
        return pointwise_convolution(inputs, tf.convert_to_tensor(kernel))


@tf.custom_gradient
def pointwise_convolution(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """images: (B, H, W, C).  kernel: (1, 1, C, D).  Returns (B, H, W, D) and its gradients."""

    def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pixels, rows = (tf.reshape(each, (-1, each.shape[-1])) for each in (images, upstream))
        of_images = tf.matmul(rows, kernel[0, 0], transpose_b=True)
        of_kernel = tf.matmul(pixels, rows, transpose_a=True)
        return tf.reshape(of_images, tf.shape(images)), tf.reshape(of_kernel, kernel.shape)

    return tf.nn.conv2d(images, kernel, 1, "VALID"), gradients
