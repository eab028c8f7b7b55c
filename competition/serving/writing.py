"""Write an exported chain as SavedModel and ONNX."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from competition.config.errors import UserError, needed_for
from competition.files.manifest import atomic_write
from competition.serving.bundle import FILES
from competition.serving.graph import ExportedChain
from competition.serving.served_models import Selection

if TYPE_CHECKING:
    from tf2onnx.graph import Graph, Node

OPSET = 17  # of ONNX; the newest that tf2onnx 1.16 writes is 18
LARGEST_FILE = 1_900_000_000  # bytes; an ONNX file is limited to 2 GiB


def write_formats(chain: ExportedChain, selection: Selection, folder: Path, formats: Sequence[str]) -> None:
    """Write each format in `formats` to its place in `folder`. Raises UserError if a package is missing."""
    if "saved_model" in formats:
        path = folder / FILES["saved_model"]
        shutil.rmtree(path, ignore_errors=True)
        tf.saved_model.save(chain, str(path), signatures=chain.signatures())
    if "onnx" in formats:
        total = sum(path.stat().st_size for paths in selection.weights.values() for path in paths.values())
        if total > LARGEST_FILE:
            raise UserError(
                f"the weights take {total / 1e9:.1f} GB, onnx holds at most 2: export FORMAT=saved_model, or one member"
            )
        function = tf.function(lambda *images: chain.predict(images, with_features=True), autograph=False)
        with atomic_write(folder / FILES["onnx"]) as temporary:
            temporary.write_bytes(onnx_model(function, [*chain.inputs.values()]))


def onnx_model(function: tf.types.experimental.PolymorphicFunction, inputs: Sequence[tf.TensorSpec]) -> bytes:
    """The serialized ONNX model of a TensorFlow function."""
    with needed_for("an export to ONNX (unlike FORMAT=saved_model)", "onnx"):
        import tf2onnx
        from onnx import numpy_helper
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    model, _ = tf2onnx.convert.from_function(
        function, input_signature=inputs, opset=OPSET, custom_op_handlers={"Erfc": (_erfc_by_erf, [])}
    )
    # tf2onnx leaves constants as inputs, such as the length of a position embedding: the model gets their values.
    source, names = function.get_concrete_function(*inputs).graph, {spec.name for spec in inputs}
    read = {name for node in model.graph.node for name in node.input}
    for extra in [each for each in model.graph.input if each.name not in names]:
        if extra.name in read:
            value = tf.make_ndarray(source.get_operation_by_name(extra.name.rpartition(":")[0]).get_attr("value"))
            model.graph.initializer.append(numpy_helper.from_array(value, extra.name))
        model.graph.input.remove(extra)
    return bytes(model.SerializeToString())


def _erfc_by_erf(context: "Graph", node: "Node", name: str, arguments: object) -> None:
    """Erfc(x) as 1 - Erf(x): TensorFlow computes the exact GELU by Erfc, which ONNX does not have."""
    one = context.make_const(f"{name}_one", np.ones((), np.float32)).output[0]
    shapes, dtypes, values = node.output_shapes, node.output_dtypes, list(node.input)
    context.remove_node(node.name)
    erf = context.make_node("Erf", values).output[0]
    context.make_node("Sub", [one, erf], outputs=node.output, name=name, shapes=shapes, dtypes=dtypes)
