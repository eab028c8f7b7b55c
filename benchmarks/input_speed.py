"""Training images per second and core of the input pipeline, with the flower recipe's augmentation at 512 pixels.

    python -m benchmarks.input_speed [--size 512] [--batch 64] [--seconds 5]

Measured twice: with everything on the host, as for a CPU, and with colour and CutMix left to the device, as for a TPU or GPU.
Every figure is images per second of processor time, or of wall time where it says so; the references run in the same call:

- bare: one thread reads decoded images at random into one buffer and warps them with cv2.warpAffine;
- tensorflow: the same augmentation by TensorFlow operations on whole batches (its warp truncates, ours rounds).
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tensorflow as tf

from competition.config.params_file import load_params
from competition.input_pipeline.augment import Augmentation
from competition.input_pipeline.batch_threads import Loading, cores
from competition.input_pipeline.batches import TrainingBatches, TrainingPlan
from competition.input_pipeline.decoded_rows import PixelFile
from competition.training.network_trainer import augmentation_of

ROOT = Path(__file__).resolve().parents[1]
IMAGES, CLASSES, WARM_UP = 400, 104, 4
IN_MEMORY = 3
PLACES = {"host": "everything on the host", "device": "colour and CutMix on the device"}


@dataclass(frozen=True)
class Speed:
    """Images per second of processor time and of wall time."""

    cpu: float
    wall: float


def write_images(folder: Path, size: int) -> PixelFile:
    """Smooth random images as the file of a decoded cache."""
    random, path, shape = np.random.default_rng(0), folder / "images.npy", (IMAGES, size, size, 3)
    images = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    for image in images:
        small = random.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        image[:] = cv2.resize(small, (size, size), interpolation=cv2.INTER_CUBIC)
    images.flush()
    del images
    return PixelFile(path, shape)


def speed_of(batches: Iterator[Any], batch: int, seconds: float) -> Speed:
    for _ in range(WARM_UP):
        next(batches)
    count, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        next(batches)
        count += batch
    return Speed(count / (time.process_time() - cpu), count / (time.perf_counter() - wall))


def bare(pixels: PixelFile, batch: int) -> Iterator[None]:
    """Read and warp, image by image, in this thread."""
    size, random = pixels.shape[1], np.random.default_rng(0)
    source, out = np.empty((size, size, 3), np.uint8), np.empty((size, size, 3), np.uint8)
    angle = 10 * pi / 180
    turn = np.array([[np.cos(angle), -np.sin(angle), 30], [np.sin(angle), np.cos(angle), -20]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    while True:
        for row in random.integers(0, IMAGES, batch).tolist():
            pixels.read(row, source)
            cv2.warpAffine(source, turn, (size, size), dst=out, flags=flags, borderMode=cv2.BORDER_REFLECT)
        yield


def ours(pixels: PixelFile, options: Augmentation, batch: int, threads: int, on_device: bool) -> Iterator[Any]:
    loading = Loading(threads, IN_MEMORY, None, on_device)
    source = TrainingBatches(pixels, CLASSES, batch, options, pixels.shape[1], loading)
    targets = np.eye(CLASSES, dtype=np.float32)[np.arange(IMAGES) % CLASSES]
    return iter(source.start(TrainingPlan(np.arange(IMAGES), targets, np.ones(IMAGES, np.float32), 1, 0)))


def tensorflow_way(pixels: PixelFile, options: Augmentation, batch: int) -> Iterator[Any]:
    """Affine map, saturation and CutMix of the recipe by TensorFlow operations, batches in parallel."""
    targets = tf.eye(CLASSES)

    def read(step: np.ndarray) -> np.ndarray:
        return pixels[np.random.default_rng(int(step)).integers(0, IMAGES, batch)]

    def make(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.numpy_function(read, [step], tf.uint8, stateful=False)
        images = tf.ensure_shape(images, (batch, *pixels.shape[1:]))
        return tensorflow_augmented(images, tf.gather(targets, tf.range(batch) % CLASSES), step, options)

    steps = tf.data.Dataset.counter()
    return iter(steps.map(make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(4))


def tensorflow_augmented(
    images: tf.Tensor, targets: tf.Tensor, step: tf.Tensor, options: Augmentation
) -> tuple[tf.Tensor, tf.Tensor]:
    batch, height, width = images.shape[:3]
    seeds = iter(tf.unstack(tf.random.experimental.stateless_split(tf.cast([step, 1], tf.int32), 12)))

    def uniform(limit: float) -> tf.Tensor:
        return tf.random.stateless_uniform((batch,), next(seeds), -limit, limit)

    flip = tf.where(uniform(1.0) > 0, 1.0, -1.0)
    angle, scale = uniform(options.rotate) * pi / 180, 1 + uniform(options.zoom)
    shift_x, shift_y = uniform(options.shift) * width, uniform(options.shift) * height
    a0, a1 = flip * scale * tf.cos(angle), -flip * scale * tf.sin(angle)
    b0, b1 = scale * tf.sin(angle), scale * tf.cos(angle)
    x, y, zero = (width - 1) / 2, (height - 1) / 2, tf.zeros((batch,))
    rows = [a0, a1, x + shift_x - a0 * x - a1 * y, b0, b1, y + shift_y - b0 * x - b1 * y, zero, zero]
    images = tf.raw_ops.ImageProjectiveTransformV3(
        images=images, transforms=tf.stack(rows, axis=1), output_shape=(height, width), interpolation="BILINEAR",
        fill_mode="REFLECT", fill_value=0.0,
    )  # fmt: skip
    pixels = tf.cast(images, tf.float32)
    grey = tf.reduce_mean(pixels, axis=3, keepdims=True)
    pixels = grey + (pixels - grey) * (1 + uniform(options.saturation)[:, None, None, None])
    images = tf.saturate_cast(tf.round(pixels), tf.uint8)
    first, second = (tf.random.stateless_gamma((batch,), next(seeds), options.cutmix) for _ in range(2))
    side = tf.sqrt(second / tf.maximum(first + second, 1e-12))
    ys, xs = (tf.range(n, dtype=tf.float32) / n for n in (height, width))
    center_y, center_x = uniform(0.5) + 0.5, uniform(0.5) + 0.5
    inside = (tf.abs(ys - center_y[:, None]) < side[:, None] / 2)[:, :, None]
    inside &= (tf.abs(xs - center_x[:, None]) < side[:, None] / 2)[:, None]
    kept = 1 - tf.reduce_mean(tf.cast(inside, tf.float32), axis=(1, 2))[:, None]
    mixed = tf.where(inside[..., None], tf.roll(images, 1, axis=0), images)
    return mixed, kept * targets + (1 - kept) * tf.roll(targets, 1, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement; each is repeated")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    options, batch = augmentation_of(load_params(ROOT / "recipes" / "flowers.yaml").train), arguments.batch
    with tempfile.TemporaryDirectory(prefix="benchmark") as folder:
        pixels = write_images(Path(folder), arguments.size)
        makers: dict[str, Callable[[], Iterator[Any]]] = {
            "bare": lambda: bare(pixels, batch),
            "host, 1 thread": lambda: ours(pixels, options, batch, 1, False),
            f"host, {cores()} threads": lambda: ours(pixels, options, batch, cores(), False),
            "device, 1 thread": lambda: ours(pixels, options, batch, 1, True),
            f"device, {cores()} threads": lambda: ours(pixels, options, batch, cores(), True),
            "tensorflow": lambda: tensorflow_way(pixels, options, batch),
        }
        speeds: dict[str, list[Speed]] = {name: [] for name in makers}
        for _ in range(arguments.rounds):  # interleaved, because a machine's speed changes
            for name, make in makers.items():
                speeds[name].append(speed_of(make(), batch, arguments.seconds))
    report(speeds, arguments.size)


def report(speeds: dict[str, list[Speed]], size: int) -> None:
    cpu, wall = (
        {name: np.median([getattr(one, kind) for one in all_]) for name, all_ in speeds.items()}
        for kind in ("cpu", "wall")
    )
    for name in speeds:
        print(f"{name:18} {cpu[name]:8,.0f} images/s and core, {wall[name]:8,.0f} images/s")
    for place in ("host", "device"):
        one, several = f"{place}, 1 thread", f"{place}, {cores()} threads"
        print(
            f"RESULT: {size} px, {PLACES[place]}: per core {cpu[one] / cpu['bare']:.2f} of bare with one thread, "
            f"{cpu[several] / cpu['bare']:.2f} with {cores()} (at least 0.9); "
            f"{cpu[several] / cpu['tensorflow']:.1f} times TensorFlow's operations (at least 5); "
            f"{wall[several] / wall[one] / cores():.2f} of linear scaling on {cores()} cores (at least 0.9); "
            f"load {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    main()
