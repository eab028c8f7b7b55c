"""Prediction on a CPU against the layers of Keras as they are, and against weights frozen to constants, in one run.

    python -m benchmarks.prediction              # MobileNetV2, EfficientNetV2B0, ResNet50 at 128 pixels, batches of 64

goldfold   the program of `make predict`, in which batch normalisation is one operation
Keras      the same network with Keras's own batch normalisation
frozen     goldfold's program with its weights as constants, so that TensorFlow folds batch normalisation into the convolutions;
           it is compiled once for each fold model

Their batches alternate. Weights are random; batch norm has the statistics of the batch, without which the signal of a random
network vanishes and all probabilities are equal.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

NETWORKS = ("MobileNetV2", "EfficientNetV2B0", "ResNet50")
CLASSES = 102


def processor(call: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds of processor time, result); wall time would include other programs."""
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


def measure(architecture: str, size: int, batch: int, rounds: int) -> str:
    import keras
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    from benchmarks.limits import multiply_adds, peak_flops
    from benchmarks.photos import ROOT
    from competition.config.params_file import load_params
    from competition.training.device import open_device
    from competition.training.model import build
    from competition.training.trainer import engine_of

    params = load_params(ROOT / "params.yaml")
    member = replace(params.members["small"], architecture=architecture, alpha=1.0, image_size=size)
    engine: Any = engine_of(member, CLASSES, batch, open_device(params.device))
    images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3)).astype(np.uint8)
    inputs, rows, views = tf.constant(images, tf.float32), np.arange(batch), (lambda x: x,)
    for layer in engine.model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    engine.model(inputs, training=True)
    plain_model = build(replace(member, train=replace(member.train, precision="float32")), CLASSES)
    plain_model.set_weights(engine.model.get_weights())
    plain = tf.function(lambda x: tf.nn.softmax(plain_model(x, training=False)), autograph=False)

    def goldfold() -> np.ndarray:
        return np.asarray(engine.probabilities(iter([(rows, images)]), rows, views))[:, 0]

    first, expected = processor(goldfold)
    started = time.process_time()
    program = convert_variables_to_constants_v2(engine.predictor.network.get_concrete_function(inputs))
    program(inputs)
    freezing = time.process_time() - started
    calls = {"goldfold": goldfold, "Keras": lambda: plain(inputs).numpy(), "frozen": lambda: program(inputs)[0].numpy()}
    calls["Keras"]()
    times: dict[str, list[float]] = {name: [] for name in calls}
    results = {}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds, results[name] = processor(call)
            times[name].append(seconds)
    ms = {name: float(np.median(values)) / batch * 1000 for name, values in times.items()}
    ratios = np.array(times["Keras"]) / np.array(times["goldfold"])
    limit = 2 * multiply_adds(engine.model) / peak_flops() * 1000
    gain = (ms["goldfold"] - ms["frozen"]) / 1000
    pays = f"pays from {(freezing - ms['frozen'] * batch / 1000) / gain:,.0f} image-views" if gain > 0 else "never pays"
    changed = int((results["Keras"].argmax(-1) != expected.argmax(-1)).sum())
    return (
        f"{architecture} at {size} px: {np.median(ratios):.2f} times as fast as the layers of Keras ({ratios.min():.2f} to "
        f"{ratios.max():.2f}), {ms['goldfold']:.2f} and {ms['Keras']:.2f} ms of processor time an image-view, frozen "
        f"{ms['frozen']:.2f}, which {pays} of a fold model; its multiply-adds as one matrix product of NumPy {limit:.2f}; "
        f"tracing {first - ms['goldfold'] * batch / 1000:.1f} s; largest difference "
        f"{np.abs(results['Keras'] - expected).max():.1e}, {changed} of {batch} labels changed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for architecture in options.networks:
        line = measure(architecture, options.size, options.batch, options.rounds)
        print(f"SPEED: {line}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
