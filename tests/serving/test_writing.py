"""What tf2onnx leaves undone is completed."""

from types import SimpleNamespace

import keras
import numpy as np
import onnxruntime
import tensorflow as tf

from competition.serving.writing import _onnx


class Positions(keras.layers.Layer):
    """Adds a learned vector to each position, as the vision transformers of KerasHub do."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = keras.layers.Embedding(shape[1], shape[2])
        self.table.build((1, shape[1]))
        self.positions = keras.ops.expand_dims(keras.ops.arange(shape[1]), 0)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.table(self.positions)


def test_the_constants_of_a_position_embedding_are_no_inputs_of_the_onnx_file() -> None:
    """tf2onnx leaves one of them as an input, which nobody could give."""
    inputs = keras.Input((16, 16, 3))
    patches = keras.layers.Reshape((16, 8))(keras.layers.Conv2D(8, 4, strides=4)(inputs))
    network = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(Positions()(patches)))
    function = tf.function(lambda images: network(tf.cast(images, tf.float32)), autograph=False)
    spec = tf.TensorSpec((None, 16, 16, 3), tf.uint8, "images")
    session = onnxruntime.InferenceSession(_onnx(SimpleNamespace(numbers=lambda: (function, [spec]))))
    assert [each.name for each in session.get_inputs()] == ["images"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    (output,) = session.run(None, {"images": pixels})
    np.testing.assert_allclose(output, function(pixels), rtol=1e-4, atol=1e-4)
