"""An exported model in one runtime. No engine needs the training code; Pillow decodes exactly as for training."""

import timeit
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.errors import UserError, needed_for
from competition.files.image_codec import LARGEST, decode, open_image
from competition.serving.bundle import FILES, Bundle

FORMAT_TOLERANCE = 1e-3  # largest difference of a probability between formats; 1e-5 is usual
REPEATS = 20  # timed calls with one image
Result = tuple[np.ndarray, np.ndarray]  # (B, C) float32 probabilities, (B,) int64 class numbers
# (names of outputs, name of an input -> its batch) -> the outputs
Session = Callable[[Sequence[str], Mapping[str, np.ndarray]], Sequence[np.ndarray]]


class Engine:
    """`prepare` decodes and checks one image, in any thread; `run` predicts a batch of prepared images, in one thread."""

    def __init__(self, name: str, folder: Path, bundle: Bundle) -> None:
        """Load the model in `folder`. Raises UserError if the export lacks the format, or the runtime is not installed."""
        if name not in bundle.formats:
            raise UserError(
                f"{folder} holds {', '.join(bundle.formats)}, not {name}: choose ENGINE=, or `make export FORMAT={name}` adds it"
            )
        self.name, self.bundle = name, bundle
        path = str(folder / FILES[name])
        if name == "onnx":
            with needed_for("the onnx engine", "serve"):
                import onnxruntime
            self._session: Session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run
        else:
            self._session = _saved_model_session(path)

    def prepare(self, data: bytes, most_pixels: int = LARGEST) -> list[np.ndarray]:
        """One (S, S, 3) uint8 array of an encoded image per size of the model.

        Raises BadImage, before its pixels are decoded if its header states more than `most_pixels`.
        """
        open_image(data, most_pixels)
        return [decode(data, size, self.bundle.fit) for size in self.bundle.sizes]

    def run(self, prepared: Sequence[Any]) -> Result:
        """Predict a batch of one or more images.  prepared: of each what `prepare` returned."""
        batches = [np.stack(images) for images in zip(*prepared, strict=True)]
        inputs = {f"images_{images.shape[1]}": images for images in batches}
        probs, classes = self._session(["probabilities", "class_id"], inputs)
        return probs, classes

    def features(self, pixels: np.ndarray) -> np.ndarray:
        """(B, F) float32 of unit length.  pixels: (B, S, S, 3) uint8, S = bundle.features_size."""
        # Black images at the other sizes, which the features do not depend on.
        shapes = {size: (len(pixels), size, size, 3) for size in self.bundle.sizes}
        inputs = {f"images_{size}": np.zeros(shape, np.uint8) for size, shape in shapes.items()}
        (features,) = self._session(["features"], {**inputs, f"images_{pixels.shape[1]}": pixels})
        return features


def _saved_model_session(path: str) -> Session:
    """TensorFlow."""
    with needed_for("the saved_model engine", "cpu"):
        import tensorflow as tf
    model = tf.saved_model.load(path)

    def run(names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        signature = model.signatures["features" if "features" in names else "serving_default"]
        outputs = signature(**{name: tf.constant(inputs[name]) for name in signature.structured_input_signature[1]})
        return [outputs[name].numpy() for name in names]

    return run


def check_formats(
    folder: Path, bundle: Bundle, images: Sequence[bytes]
) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """Compare the formats of an export with each other and measure their speed.  images: encoded, at least one.

    Returns for each format its speed and differences, and the reference: (B, C) probabilities and (B,) class numbers of the first
    format.  Raises UserError if a format differs by more than FORMAT_TOLERANCE.
    """
    engines = [Engine(name, folder, bundle) for name in bundle.formats]
    prepared = [engines[0].prepare(data) for data in images]
    reference_probs, reference_classes = engines[0].run(prepared)
    checks = []
    for engine in engines:
        probs, classes = engine.run(prepared)
        difference = float(np.abs(probs - reference_probs).max())
        if not difference <= FORMAT_TOLERANCE:  # also true for NaN
            raise UserError(
                f"{FILES[engine.name]} differs by {difference:.2g} in a probability, expected at most {FORMAT_TOLERANCE:g}; leave it out"
            )
        seconds = timeit.repeat(lambda: engine.run([engine.prepare(images[0])]), repeat=REPEATS, number=1)  # noqa: B023
        check = {"format": engine.name, "milliseconds": round(float(np.median(seconds)) * 1e3, 2)}  # of one image
        checks.append({**check, "difference": difference, "changed": int((classes != reference_classes).sum())})
    return checks, reference_probs, reference_classes
