"""Training at 224 pixels on a GPU: images a second of goldfold's step against timm's networks in PyTorch, in one run.

    python -m benchmarks.gpu_training --torch PYTHON             # EfficientNetV2-B0 and ResNet-50, batches of 128
    python -m benchmarks.gpu_training --torch PYTHON --try-cpu   # without a GPU: a few images, to see that the script runs

Both train from random weights with AdamW on uint8 images that are copied from the host's memory in each step, in the precision that
`train.precision: auto` chooses; PyTorch runs channels-last, with autocast and, unless --no-compile, compiled by torch.compile. Each
network of each implementation is a process of its own. --torch names the Python of an environment with torch and timm.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.photos import ROOT

NETWORKS = {"EfficientNetV2B0": "tf_efficientnetv2_b0", "ResNet50": "resnet50"}  # in keras.applications, in timm
CLASSES = 104


def goldfold(setup: dict[str, Any]) -> dict[str, Any]:
    """Train on the device that goldfold chooses: {images a second, precision, device}."""
    import tensorflow as tf

    from competition.config.params_file import load_params
    from competition.training.device import auto_precision, open_device
    from competition.training.loop import step_values
    from competition.training.trainer import engine_of

    params = load_params(ROOT / "params.yaml")
    device = open_device(params.device)
    if device.kind != "gpu" and not setup["try_cpu"]:
        raise SystemExit(f"no GPU was found, goldfold would train on {device.kind}; --try-cpu runs a few images there")
    batch, size, steps = setup["batch"], setup["size"], setup["steps"]
    train = replace(params.train, batch=batch, precision="auto")
    member = replace(params.members["small"], architecture=setup["network"], image_size=size, alpha=1.0, train=train)
    engine = engine_of(member, CLASSES, batch, device)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (batch, size, size, 3)).astype(np.uint8)
    targets = np.eye(CLASSES, dtype=np.float32)[random.integers(0, CLASSES, batch)]
    one_batch = tf.data.Dataset.from_tensors((images, targets, np.ones(batch, np.float32)))
    batches = engine.distributed(one_batch.repeat())
    values, rates = step_values(train, steps), np.full(steps, 1e-3, np.float32)
    engine.train(batches, rates, 0, values)
    seconds = []
    for call in range(1, 4):
        started = time.perf_counter()
        engine.train(batches, rates, call * steps, values)  # returns the loss, so it waits for the device
        seconds.append(time.perf_counter() - started)
    return {"rate": batch * steps / min(seconds), "precision": auto_precision(device), "device": device.kind}


def child(command: list[str], setup: dict[str, Any]) -> dict[str, Any]:
    ended = subprocess.run([*command, json.dumps(setup)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command[1:])} ended with {ended.returncode}")
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def main() -> None:
    if "--child" in sys.argv:
        print(json.dumps(goldfold(json.loads(sys.argv[-1]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", required=True, help="the Python of an environment with torch and timm")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20, help="steps in each of three calls; the fastest counts")
    parser.add_argument("--no-compile", action="store_true", help="PyTorch without torch.compile")
    parser.add_argument("--try-cpu", action="store_true", help="8 images of 64 pixels, 2 steps, on the CPU if need be")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    setup = {"size": 224, "batch": options.batch, "steps": options.steps, "try_cpu": options.try_cpu}
    if options.try_cpu:
        setup |= {"size": 64, "batch": 8, "steps": 2}
    for network, timm_name in NETWORKS.items():
        ours = child([sys.executable, "-m", "benchmarks.gpu_training", "--child"], {**setup, "network": network})
        own = {
            "network": timm_name,
            "compile": not options.no_compile,
            "precision": ours["precision"],
            "classes": CLASSES,
        }
        theirs = child([options.torch, str(Path(__file__).with_name("gpu_training_torch.py"))], {**setup, **own})
        ratio = ours["rate"] / theirs["rate"]
        print(
            f"SPEED: {network} at {setup['size']} px, batch {setup['batch']}, {ours['precision']}: goldfold {ours['rate']:,.0f} "
            f"images/s on {ours['device']}, timm {theirs['rate']:,.0f} on {theirs['device']}: {ratio:.2f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    main()
