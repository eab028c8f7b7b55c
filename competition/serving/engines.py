"""Engines: an exported model in one runtime, behind one interface. No engine needs the training code.

`prepare` decodes and checks one image with Pillow, in any thread; `run` predicts a batch of prepared images, in one thread.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from competition.config.errors import UserError
from competition.prepare.decoding import decode, normalized
from competition.serving.bundle import FILES, Bundle, load_bundle

Result = tuple[np.ndarray, np.ndarray]  # (B, C) float32 probabilities, (B,) int64 class numbers


class Engine(Protocol):
    name: str
    bundle: Bundle

    def prepare(self, data: bytes) -> Any:
        """Return what `run` takes for one encoded image. Raises images.BadImage."""

    def run(self, prepared: Sequence[Any]) -> Result:
        """Predict a batch of one or more prepared images."""

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        """Predict a batch of decoded images.  pixels: for each size of the model (B, S, S, 3) uint8."""

    def features(self, pixels: np.ndarray) -> np.ndarray:
        """(B, F) float32 of unit length.  pixels: (B, S, S, 3) uint8, S = bundle.features_size."""


class PixelEngine:
    """A runtime that takes pixels: Pillow decodes exactly as for training, whatever the format of the image."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def prepare(self, data: bytes) -> list[np.ndarray]:
        """One (S, S, 3) uint8 array for each size of the model."""
        return [decode(data, size, self.bundle.fit) for size in self.bundle.sizes]

    def run(self, prepared: Sequence[list[np.ndarray]]) -> Result:
        return self.run_pixels([np.stack(images) for images in zip(*prepared, strict=True)])

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        """pixels: for each size of the model (B, S, S, 3) uint8."""
        raise NotImplementedError

    def _all_inputs(self, pixels: np.ndarray) -> list[np.ndarray]:
        """`pixels` at their size and black images at the others, which the features do not depend on."""
        shapes = [(len(pixels), size, size, 3) for size in self.bundle.sizes]
        return [pixels if shape == pixels.shape else np.zeros(shape, np.uint8) for shape in shapes]


class OnnxEngine(PixelEngine):
    """ONNX Runtime on the CPU."""

    name = "onnx"

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        super().__init__(bundle)
        try:
            import onnxruntime
        except ImportError:
            raise UserError("the onnx engine needs ONNX Runtime; install goldfold[serve]") from None
        path = str(folder / FILES["onnx"])
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        probs, classes = self._run(["probabilities", "class_id"], pixels)
        return probs, classes

    def features(self, pixels: np.ndarray) -> np.ndarray:
        return np.asarray(self._run(["features"], self._all_inputs(pixels))[0])

    def _run(self, outputs: list[str], pixels: Sequence[np.ndarray]) -> list[Any]:
        return list(self._session.run(outputs, {f"images_{images.shape[1]}": images for images in pixels}))


class LiteRtEngine(PixelEngine):
    """LiteRT on the CPU (XNNPACK)."""

    name = "litert"

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        super().__init__(bundle)
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError:
            raise UserError("the litert engine needs LiteRT; install goldfold[litert]") from None
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


class SavedModelEngine:
    """TensorFlow with the signature that takes encoded images."""

    name = "saved_model"

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        try:
            import tensorflow as tf
        except ImportError:
            raise UserError("the saved_model engine needs TensorFlow; install goldfold[cpu]") from None
        self.bundle, self._tf = bundle, tf
        self._model = tf.saved_model.load(str(folder / FILES["saved_model"]))

    def prepare(self, data: bytes) -> bytes:
        """The image as the graph reads it: formats and orientations that it refuses are converted to PNG."""
        decode(data, 32, "squash")  # one damaged image would fail the whole batch
        return normalized(data)

    def run(self, prepared: Sequence[bytes]) -> Result:
        return self._result(self._model.signatures["serving_default"](image_bytes=self._tf.constant(list(prepared))))

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        inputs = {f"images_{images.shape[1]}": self._tf.constant(images) for images in pixels}
        return self._result(self._model.signatures["pixels"](**inputs))

    def features(self, pixels: np.ndarray) -> np.ndarray:
        inputs = {f"images_{pixels.shape[1]}": self._tf.constant(pixels)}
        return np.asarray(self._model.signatures["features"](**inputs)["features"])

    @staticmethod
    def _result(outputs: Any) -> Result:
        return outputs["probabilities"].numpy(), outputs["class_id"].numpy()


ENGINES: dict[str, Callable[..., Engine]] = {
    "onnx": OnnxEngine,
    "saved_model": SavedModelEngine,
    "litert": LiteRtEngine,
}


def open_engine(name: str, folder: Path) -> Engine:
    """Load the model of an export. Raises UserError for an incomplete export, or a format or package that is missing."""
    bundle = load_bundle(folder)
    if name not in bundle.formats:
        raise UserError(
            f"{folder} holds {', '.join(bundle.formats)}, not {name}; `make export FORMAT={name}` adds it, or choose ENGINE="
            f"{bundle.formats[0]}"
        )
    return ENGINES[name](folder, bundle)
