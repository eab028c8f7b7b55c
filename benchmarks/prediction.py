"""Prediction on a CPU with the weights frozen to constants, against the same network with variables, in one run.

    python -m benchmarks.prediction              # MobileNetV2, EfficientNetV2B0, ResNet50 at 128 pixels, batches of 64

Both engines of the ratio are the one that predicts in `make predict`; their batches alternate. "Pays from" is the number
of image-views per fold model from which freezing, with its first batch, takes less time than it saves;
engine_tensorflow.FREEZE_FROM is the threshold in use. Weights are random; batch norm has the statistics of the batch, without which
the signal of a random network vanishes and all probabilities are equal.
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
    from benchmarks.limits import multiply_adds, peak_flops
    from benchmarks.photos import ROOT
    from competition.config.params_file import load_params
    from competition.training.device import open_device
    from competition.training.predictor_tensorflow import FREEZE_FROM
    from competition.training.trainer import engine_of

    params = load_params(ROOT / "params.yaml")
    member = replace(params.members["small"], architecture=architecture, alpha=1.0, image_size=size)
    engine: Any = engine_of(member, CLASSES, batch, open_device(params.device))
    images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3)).astype(np.uint8)
    rows, views = np.arange(batch), (lambda x: x,)

    for layer in engine.model._flatten_layers():
        if hasattr(layer, "momentum"):
            layer.momentum = 0.0
    engine.model(images.astype(np.float32), training=True)

    def predict() -> np.ndarray:
        return np.asarray(engine.probabilities(iter([(rows, images)]), rows, views))

    first, plain = processor(predict)
    engine.predictor.frozen, freezing = None, time.process_time()
    engine.prepare_prediction(FREEZE_FROM, size)
    frozen_network = engine.predictor.frozen
    frozen = predict()
    freezing = time.process_time() - freezing
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for is_frozen in (False, True):
            engine.predictor.frozen = frozen_network if is_frozen else None
            times[is_frozen].append(processor(predict)[0])
    slow, fast = (float(np.median(times[key])) for key in (False, True))
    ratios = np.array(times[False]) / np.array(times[True])
    limit = 2 * multiply_adds(engine.model) / peak_flops() * 1000
    pays = (freezing - fast) / ((slow - fast) / batch) if slow > fast else float("inf")
    changed = int((frozen.argmax(-1) != plain.argmax(-1)).sum())
    return (
        f"{architecture} at {size} px: frozen {np.median(ratios):.2f} times as fast ({ratios.min():.2f} to {ratios.max():.2f}), "
        f"{slow / batch * 1000:.2f} and {fast / batch * 1000:.2f} ms of processor time an image-view, where its multiply-adds "
        f"as one matrix product of NumPy take {limit:.2f}; freezing {freezing - fast:.1f} s, tracing {first - slow:.1f} s; pays from "
        f"{pays:,.0f} image-views, frozen from {FREEZE_FROM / size**2:,.0f}; largest difference "
        f"{np.abs(frozen - plain).max():.1e}, {changed} of {batch} labels changed, largest probability {plain.max():.3f}"
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
