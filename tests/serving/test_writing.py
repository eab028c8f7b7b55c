"""What tf2onnx leaves undone is completed."""

import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
from onnx import TensorProto, helper

from competition.serving.writing import _restore_constants


def test_a_constant_that_became_an_input_is_a_constant_again_and_an_unread_one_is_dropped() -> None:
    with tf.Graph().as_default() as source:
        tf.constant([2.0, 3.0], name="block/scale")
        tf.constant(7, name="block/unread")
    names = {"images": [None, 2], "block/scale:0": [2], "block/unread:0": []}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in names.items()]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, 2])
    graph = helper.make_graph([helper.make_node("Mul", ["images", "block/scale:0"], ["out"])], "g", inputs, [output])
    _restore_constants(graph, source, ["images"])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert [each.name for each in session.get_inputs()] == ["images"]
    np.testing.assert_array_equal(session.run(None, {"images": np.ones((1, 2), np.float32)})[0], [[2, 3]])
