"""Time to the first training step of a new MobileNetV2: our loop, Keras `fit` around our step, plain `fit`, JAX.

    python benchmarks/first_step.py          # 96 px, batch 16; each in its own process, one after the other

Prints seconds, and seconds of processor time (less affected by other programs on the machine), until the end of
the first step, their ratio to our loop, and the median of the next ten steps.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZE, BATCH, CLASSES, STEPS = 96, 16, 104, 10
VARIANTS = {"custom": "tensorflow", "fit": "tensorflow", "plain fit": "tensorflow", "custom on jax": "jax"}


def timed(variant: str) -> dict[str, list[float]]:
    """(wall, CPU) seconds until the end of the first step, and the median of a later one."""
    import numpy as np
    import tensorflow as tf

    from competition.config.params_file import load_params
    from competition.training.device import open_device
    from competition.training.engine import CompiledIn
    from competition.training.engines import make_engine
    from competition.training.loop import step_values
    from competition.training.model import build

    params = load_params(ROOT / "params.yaml")
    train = replace(params.train, batch=BATCH, precision="float32")
    member = replace(params.members["small"], architecture="MobileNetV2", image_size=SIZE, alpha=1.0, train=train)
    images = np.random.default_rng(0).integers(0, 256, (BATCH, SIZE, SIZE, 3)).astype(np.uint8)
    targets, weights = np.eye(CLASSES, dtype=np.float32)[np.arange(BATCH)], np.ones(BATCH, np.float32)
    device = open_device(params.device)
    dataset = tf.data.Dataset.from_tensors((images, targets, weights)).repeat()
    times = [now()]
    if variant == "plain fit":
        import keras

        model = build(member, CLASSES)
        model.compile(keras.optimizers.AdamW(1e-3), keras.losses.CategoricalCrossentropy(from_logits=True))
        record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: times.append(now()))
        model.fit(dataset, steps_per_epoch=STEPS + 1, verbose=0, callbacks=[record])
    else:
        engine = make_engine(
            lambda: build(member, CLASSES), BATCH, BATCH, device, CompiledIn(1, False, variant == "fit")
        )
        batches = engine.distributed(dataset)
        for step in range(STEPS + 1):
            engine.train(batches, np.array([1e-3], np.float32), step, step_values(train, 100))
            times.append(now())
    durations = np.diff(np.array(times), axis=0)
    return {"first": durations[0].tolist(), "step": np.median(durations[1:], axis=0).tolist()}


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    timings: dict[str, dict[str, list[float]]] = {}
    for variant, backend in VARIANTS.items():
        environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, __file__, variant]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        timings[variant] = json.loads(completed.stdout.splitlines()[-1])
        (wall, cpu), (step_wall, step_cpu) = timings[variant]["first"], timings[variant]["step"]
        ratio = cpu / timings["custom"]["first"][1]
        print(
            f"{variant:14} first step after {wall:5.1f} s ({cpu:5.1f} s of processor time, {ratio:.2f} x custom), "
            f"then {step_wall:.2f} s ({step_cpu:.2f}) a step",
            flush=True,
        )
    custom, *others = (timing["first"][1] for timing in timings.values())
    ratios = ", ".join(f"{name} {cpu / custom:.1f}" for name, cpu in zip([*timings][1:], others, strict=True))
    print(
        f"SPEED: until the end of the first step a new MobileNetV2 ({SIZE} px, batch {BATCH}) takes {custom:.1f} s of processor time; as a "
        f"multiple of it: {ratios}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(timed(sys.argv[1])))
    else:
        main()
