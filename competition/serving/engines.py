"""Engines: an exported model in one runtime, behind one interface. No engine needs the training code.

`prepare` decodes and checks one image with Pillow, in any thread; `run` predicts a batch of prepared images, in one thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.errors import UserError
from competition.prepare.decoding import decode, normalized
from competition.serving.bundle import FILES, Bundle, load_bundle

Result = tuple[np.ndarray, np.ndarray]  # (B, C) float32 probabilities, (B,) int64 class numbers


class Engine(ABC):
    """A runtime that takes pixels: Pillow decodes exactly as for training, whatever the format of the image."""

    name: str

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        """Load the model in `folder`. Raises ImportError if the runtime is not installed."""
        self.bundle = bundle

    def prepare(self, data: bytes) -> Any:
        """What `run` takes for one encoded image: one (S, S, 3) uint8 array per size of the model. Raises BadImage."""
        return [decode(data, size, self.bundle.fit) for size in self.bundle.sizes]

    def run(self, prepared: Sequence[Any]) -> Result:
        """Predict a batch of one or more prepared images."""
        return self.run_pixels([np.stack(images) for images in zip(*prepared, strict=True)])

    @abstractmethod
    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        """Predict a batch of decoded images.  pixels: for each size of the model (B, S, S, 3) uint8."""

    @abstractmethod
    def features(self, pixels: np.ndarray) -> np.ndarray:
        """(B, F) float32 of unit length.  pixels: (B, S, S, 3) uint8, S = bundle.features_size."""

    def _all_inputs(self, pixels: np.ndarray) -> list[np.ndarray]:
        """`pixels` at their size and black images at the others, which the features do not depend on."""
        shapes = [(len(pixels), size, size, 3) for size in self.bundle.sizes]
        return [pixels if shape == pixels.shape else np.zeros(shape, np.uint8) for shape in shapes]


def by_input(pixels: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Name of the model's input -> its images."""
    return {f"images_{images.shape[1]}": images for images in pixels}


class OnnxEngine(Engine):
    """ONNX Runtime on the CPU."""

    name = "onnx"

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        super().__init__(folder, bundle)
        import onnxruntime

        path = str(folder / FILES["onnx"])
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        probs, classes = self._session.run(["probabilities", "class_id"], by_input(pixels))
        return np.asarray(probs), np.asarray(classes)

    def features(self, pixels: np.ndarray) -> np.ndarray:
        return np.asarray(self._session.run(["features"], by_input(self._all_inputs(pixels)))[0])


class LiteRtEngine(Engine):
    """LiteRT on the CPU (XNNPACK)."""

    name = "litert"

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        super().__init__(folder, bundle)
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(str(folder / FILES["litert"]))
        self._batch = -1

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        classes, probs, _ = self._run(pixels)
        return probs, classes

    def features(self, pixels: np.ndarray) -> np.ndarray:
        return self._run(self._all_inputs(pixels))[2][:, 0]

    def _run(self, pixels: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(B,) class numbers, (B, C) probabilities, (B, 1, F) features: LiteRT does not keep their names."""
        inputs = {tuple(each["shape"][1:3]): each["index"] for each in self._interpreter.get_input_details()}
        if len(pixels[0]) != self._batch:
            for images in pixels:
                self._interpreter.resize_tensor_input(inputs[images.shape[1:3]], images.shape)
            self._interpreter.allocate_tensors()
            self._batch = len(pixels[0])
        for images in pixels:
            self._interpreter.set_tensor(inputs[images.shape[1:3]], images)
        self._interpreter.invoke()
        outputs = [self._interpreter.get_tensor(each["index"]) for each in self._interpreter.get_output_details()]
        return sorted(outputs, key=lambda array: array.ndim)


class SavedModelEngine(Engine):
    """TensorFlow with the signature that takes encoded images."""

    name = "saved_model"

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        super().__init__(folder, bundle)
        import tensorflow as tf

        self._tf, self._model = tf, tf.saved_model.load(str(folder / FILES["saved_model"]))

    def prepare(self, data: bytes) -> bytes:
        """The image as the graph reads it: formats and orientations that it refuses are converted to PNG."""
        decode(data, 32, "squash")  # one damaged image would fail the whole batch
        return normalized(data)

    def run(self, prepared: Sequence[bytes]) -> Result:
        outputs = self._call("serving_default", {"image_bytes": list(prepared)})
        return outputs["probabilities"], outputs["class_id"]

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        outputs = self._call("pixels", by_input(pixels))
        return outputs["probabilities"], outputs["class_id"]

    def features(self, pixels: np.ndarray) -> np.ndarray:
        return self._call("features", by_input([pixels]))["features"]

    def _call(self, signature: str, inputs: Mapping[str, np.ndarray | list[bytes]]) -> dict[str, np.ndarray]:
        tensors = {name: self._tf.constant(value) for name, value in inputs.items()}
        return {name: output.numpy() for name, output in self._model.signatures[signature](**tensors).items()}


ENGINES: dict[str, type[Engine]] = {"onnx": OnnxEngine, "saved_model": SavedModelEngine, "litert": LiteRtEngine}
INSTALL = {
    "onnx": "ONNX Runtime; install goldfold[serve]",
    "saved_model": "TensorFlow; install goldfold[cpu]",
    "litert": "LiteRT; install goldfold[litert]",
}


def open_engine(name: str, folder: Path) -> Engine:
    """Load the model of an export. Raises UserError for an incomplete export, or a format or package that is missing."""
    bundle = load_bundle(folder)
    if name not in bundle.formats:
        raise UserError(
            f"{folder} holds {', '.join(bundle.formats)}, not {name}; `make export FORMAT={name}` adds it, or choose ENGINE="
            f"{bundle.formats[0]}"
        )
    return load_engine(name, folder, bundle)


def load_engine(name: str, folder: Path, bundle: Bundle) -> Engine:
    """Load one format of an export. Raises UserError if its runtime is not installed."""
    try:
        return ENGINES[name](folder, bundle)
    except ImportError:
        raise UserError(f"the {name} engine needs {INSTALL[name]}") from None
