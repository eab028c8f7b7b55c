"""Write an exported chain as SavedModel, ONNX and LiteRT."""

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from competition.config.errors import UserError
from competition.files.manifest import atomic_write
from competition.serving.bundle import FILES
from competition.serving.graph import ExportedChain
from competition.serving.selection import Selection

OPSET = 17  # of ONNX; the newest that tf2onnx 1.16 writes is 18
LARGEST_FILE = 1_900_000_000  # bytes; ONNX and LiteRT files are limited to 2 GiB


def write_formats(chain: ExportedChain, selection: Selection, folder: Path, formats: Sequence[str]) -> None:
    """Write each format in `formats` to its place in `folder`. Raises UserError if a package is missing."""
    for name in formats:
        if name != "saved_model":
            _check_size(selection, name)
        WRITERS[name](chain, folder / FILES[name])


def _saved_model(chain: ExportedChain, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    tf.saved_model.save(chain, str(path), signatures=chain.signatures())


def _onnx(chain: ExportedChain, path: Path) -> None:
    try:
        import tf2onnx
    except ImportError:
        raise UserError(
            "an export to ONNX needs tf2onnx; install goldfold[onnx], or choose FORMAT=saved_model"
        ) from None
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    function, inputs = chain.numbers()
    with atomic_write(path) as temporary:
        tf2onnx.convert.from_function(function, input_signature=inputs, opset=OPSET, output_path=str(temporary))


def _litert(chain: ExportedChain, path: Path) -> None:
    function, inputs = chain.numbers()
    # With variables instead of constants LiteRT would start from uninitialised memory and return NaN.
    frozen = convert_variables_to_constants_v2(function.get_concrete_function(*inputs))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen], chain)
    with atomic_write(path) as temporary:
        temporary.write_bytes(converter.convert())


WRITERS: dict[str, Callable[[ExportedChain, Path], Any]] = {
    "saved_model": _saved_model,
    "onnx": _onnx,
    "litert": _litert,
}


def _check_size(selection: Selection, name: str) -> None:
    total = sum(path.stat().st_size for paths in selection.weights.values() for path in paths.values())
    if total > LARGEST_FILE:
        raise UserError(
            f"the weights of {selection.title} take {total / 1e9:.1f} GB; a file of format {name} holds at most 2 GB: export "
            "FORMAT=saved_model, or one member or fold (MEMBER=, FOLD=)"
        )
