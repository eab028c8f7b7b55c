"""Engines: an exported model in one runtime, behind one interface. No engine needs the training code.

`prepare` decodes and checks one image with Pillow, in any thread; `run` predicts a batch of prepared images, in one thread.
"""

import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.errors import UserError, needed_for
from competition.prepare.decoding import decode, normalized
from competition.serving.bundle import FILES, Bundle

FORMAT_TOLERANCE = 1e-3  # largest difference of a probability between formats; 1e-5 is usual
REPEATS = 20  # timed calls with one image
Result = tuple[np.ndarray, np.ndarray]  # (B, C) float32 probabilities, (B,) int64 class numbers
# (names of outputs, name of an input -> its batch) -> the outputs
Session = Callable[[Sequence[str], Mapping[str, Any]], Sequence[np.ndarray]]


class Engine:
    """An exported model in one runtime. Pillow decodes exactly as for training, whatever the format of the image.

    A SavedModel decodes images itself: its engine gives it encoded images, and those that its graph refuses as PNG.
    """

    def __init__(self, name: str, folder: Path, bundle: Bundle) -> None:
        """Load the model in `folder`. Raises UserError if the export lacks the format, or the runtime is not installed."""
        if name not in bundle.formats:
            raise UserError(
                f"{folder} holds {', '.join(bundle.formats)}, not {name}: choose ENGINE=, or `make export FORMAT={name}` adds it"
            )
        self.name, self.bundle = name, bundle
        open_session, extra = SESSIONS[name]
        with needed_for(f"the {name} engine", extra):
            self._session = open_session(str(folder / FILES[name]))

    def prepare(self, data: bytes) -> Any:
        """What `run` takes for one encoded image: it, or one (S, S, 3) uint8 array per size of the model. Raises BadImage."""
        if self.name == "saved_model":
            decode(data, 32, "squash")  # one damaged image would fail the whole batch
            return normalized(data)
        return [decode(data, size, self.bundle.fit) for size in self.bundle.sizes]

    def run(self, prepared: Sequence[Any]) -> Result:
        """Predict a batch of one or more prepared images."""
        if self.name != "saved_model":
            return self.run_pixels([np.stack(images) for images in zip(*prepared, strict=True)])
        probs, classes = self._session(["probabilities", "class_id"], {"image_bytes": list(prepared)})
        return probs, classes

    def run_pixels(self, pixels: Sequence[np.ndarray]) -> Result:
        """Predict a batch of decoded images.  pixels: for each size of the model (B, S, S, 3) uint8."""
        inputs = {f"images_{images.shape[1]}": images for images in pixels}
        probs, classes = self._session(["probabilities", "class_id"], inputs)
        return probs, classes

    def features(self, pixels: np.ndarray) -> np.ndarray:
        """(B, F) float32 of unit length.  pixels: (B, S, S, 3) uint8, S = bundle.features_size."""
        # Black images at the other sizes, which the features do not depend on.
        shapes = {size: (len(pixels), size, size, 3) for size in self.bundle.sizes}
        inputs = {f"images_{size}": np.zeros(shape, np.uint8) for size, shape in shapes.items()}
        (features,) = self._session(["features"], {**inputs, f"images_{pixels.shape[1]}": pixels})
        return features


def _onnx_session(path: str) -> Session:
    """ONNX Runtime on the CPU."""
    import onnxruntime

    session: Session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run
    return session


def _litert_session(path: str) -> Session:
    """LiteRT on the CPU (XNNPACK)."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path)
    input_of_side = {int(each["shape"][1]): each["index"] for each in interpreter.get_input_details()}
    # LiteRT keeps no names of outputs: (B,) class numbers, (B, C) probabilities, (B, 1, F) features.
    outputs = sorted(interpreter.get_output_details(), key=lambda each: len(each["shape"]))
    output_of = {name: each["index"] for name, each in zip(("class_id", "probabilities", "features"), outputs)}
    batch = -1

    def run(names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        nonlocal batch
        size = len(next(iter(inputs.values())))
        if size != batch:
            for images in inputs.values():
                interpreter.resize_tensor_input(input_of_side[images.shape[1]], images.shape)
            interpreter.allocate_tensors()
            batch = size
        for images in inputs.values():
            interpreter.set_tensor(input_of_side[images.shape[1]], images)
        interpreter.invoke()
        results = [interpreter.get_tensor(output_of[name]) for name in names]
        return [result[:, 0] if result.ndim == 3 else result for result in results]

    return run


def _saved_model_session(path: str) -> Session:
    """TensorFlow. Encoded images are read by the signature that takes them."""
    import tensorflow as tf

    model = tf.saved_model.load(path)

    def run(names: Sequence[str], inputs: Mapping[str, Any]) -> Sequence[np.ndarray]:
        of_pixels = "features" if "features" in names else "pixels"
        signature = model.signatures["serving_default" if "image_bytes" in inputs else of_pixels]
        outputs = signature(**{name: tf.constant(inputs[name]) for name in signature.structured_input_signature[1]})
        return [outputs[name].numpy() for name in names]

    return run


# Format -> what opens it, and the extra of pyproject.toml that it needs.
SESSIONS: dict[str, tuple[Callable[[str], Session], str]] = {
    "onnx": (_onnx_session, "serve"),
    "saved_model": (_saved_model_session, "cpu"),
    "litert": (_litert_session, "litert"),
}


def check_formats(
    folder: Path, bundle: Bundle, images: Sequence[bytes]
) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """Compare the formats of an export with each other and measure their speed.  images: encoded, at least one.

    Returns for each format its size, speed and differences, and the reference: (B, C) probabilities and (B,) class numbers, of the
    first format, from the pixels that Pillow decodes.  Raises UserError if a format differs by more than FORMAT_TOLERANCE.
    """
    pixels = [np.stack([decode(data, size, bundle.fit) for data in images]) for size in bundle.sizes]
    checks, reference = [], None
    for name in bundle.formats:
        started = time.perf_counter()
        engine = Engine(name, folder, bundle)
        load_seconds = time.perf_counter() - started
        reference = reference or engine.run_pixels(pixels)
        probs, classes = engine.run([engine.prepare(data) for data in images])
        difference = float(np.abs(probs - reference[0]).max())  # from the first format's on the same pixels
        if not difference <= FORMAT_TOLERANCE:  # also true for NaN
            raise UserError(
                f"{FILES[name]} differs by {difference:.2g} in a probability, expected at most {FORMAT_TOLERANCE:g}; export without it"
            )
        seconds = timeit.repeat(lambda: engine.run([engine.prepare(images[0])]), repeat=REPEATS, number=1)  # noqa: B023
        path = folder / FILES[name]
        megabytes = sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file()) / 1e6
        check = {"format": name, "megabytes": round(megabytes, 2), "load_seconds": round(load_seconds, 2)}
        check["milliseconds"] = round(float(np.median(seconds)) * 1e3, 2)  # of one image, decoding included
        checks.append({**check, "difference": difference, "changed": int((classes != reference[1]).sum())})
    assert reference is not None, "an export has at least one format"
    return checks, *reference
