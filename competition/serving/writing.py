"""Write an exported chain as SavedModel, ONNX and LiteRT."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from competition.config.errors import UserError, needed_for
from competition.files.manifest import atomic_write
from competition.serving.bundle import FILES
from competition.serving.graph import ExportedChain
from competition.serving.served_models import Selection

if TYPE_CHECKING:
    from tf2onnx.graph import Graph, Node

OPSET = 17  # of ONNX; the newest that tf2onnx 1.16 writes is 18
LARGEST_FILE = 1_900_000_000  # bytes; ONNX and LiteRT files are limited to 2 GiB


def write_formats(chain: ExportedChain, selection: Selection, folder: Path, formats: Sequence[str]) -> None:
    """Write each format in `formats` to its place in `folder`. Raises UserError if a package is missing."""
    total = sum(path.stat().st_size for paths in selection.weights.values() for path in paths.values())
    for name in formats:
        path = folder / FILES[name]
        if name == "saved_model":
            shutil.rmtree(path, ignore_errors=True)
            tf.saved_model.save(chain, str(path), signatures=chain.signatures())
            continue
        if total > LARGEST_FILE:
            raise UserError(
                f"the weights take {total / 1e9:.1f} GB, {name} holds at most 2: export FORMAT=saved_model, or one member or fold"
            )
        with atomic_write(path) as temporary:
            if name == "onnx":
                temporary.write_bytes(_onnx(chain))
                continue
            # Outputs lose their names; with an axis more the features differ from the probabilities in their number of axes.
            function, inputs = chain.numbers(lambda features: features[:, None])
            # With variables instead of constants LiteRT would start from uninitialised memory and return NaN.
            frozen = convert_variables_to_constants_v2(function.get_concrete_function(*inputs))
            temporary.write_bytes(tf.lite.TFLiteConverter.from_concrete_functions([frozen], chain).convert())


def _onnx(chain: ExportedChain) -> bytes:
    with needed_for("an export to ONNX (unlike FORMAT=saved_model)", "onnx"):
        import tf2onnx
        from onnx import numpy_helper
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    function, inputs = chain.numbers()
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
