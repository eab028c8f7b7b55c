"""Wall time of training the same folds as public notebooks do and with goldfold, and their ratio.

    python -m benchmarks.notebook_way --source photos.zip     # or no source: generated images

Notebook: for every fold a new Keras model, compiled by `fit` anew; TFRecords parsed and JPEGs decoded in every
epoch by tf.data, which reads and decodes in parallel; validation after every epoch; predictions of the held-out fold.
goldfold: images decoded once, one compiled step for all folds, the same epochs, batches, flips and held-out scores.
Each runs in its own process, one after the other; the times exclude the start of TensorFlow.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.photos import (
    ROOT,
    Setup,
    add_arguments,
    describe,
    fold_of,
    load,
    member_of,
    scratch,
    setup_of,
    shards,
    write,
)


def notebook(setup: Setup, folder: Path, alphas: Sequence[float] = (), flipped: bool = False) -> tuple[float, int]:
    """(held-out accuracy of the mean over the models, images)

    alphas: width of each model; () = one of setup.alpha.  flipped: predict the images and their mirror images.
    """
    import keras
    import tensorflow as tf

    labels = np.loadtxt(folder / "labels.csv", delimiter=",", usecols=1, dtype=int)
    fold, classes = fold_of(labels, setup.folds), int(labels.max()) + 1
    features = {
        name: tf.io.FixedLenFeature([], dtype)
        for name, dtype in (("image", tf.string), ("id", tf.string), ("class", tf.int64))
    }
    fold_of_row = tf.constant(fold)

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        row = tf.io.parse_single_example(serialized, features)
        number = tf.strings.to_number(tf.strings.substr(row["id"], 1, 6), tf.int32)
        return row["image"], row["class"], fold_of_row[number]

    def decode(image: tf.Tensor, label: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        decoded = tf.image.resize(tf.io.decode_jpeg(image, channels=3), (setup.size, setup.size))
        return tf.ensure_shape(decoded, (setup.size, setup.size, 3)) / 127.5 - 1.0, label

    def flip(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.random_flip_left_right(image), label

    auto = tf.data.AUTOTUNE
    probs, true_labels = np.zeros((len(fold), classes)), np.zeros(len(fold), int)
    for k, alpha in product(range(setup.folds), alphas or (setup.alpha,)):
        keras.utils.clear_session()
        rows = tf.data.TFRecordDataset(shards(folder), num_parallel_reads=auto).map(parse, num_parallel_calls=auto)
        train = (
            rows.filter(lambda _, __, row_fold, k=k: row_fold != k)
            .repeat()
            .shuffle(2048)
            .map(decode, num_parallel_calls=auto)
        )
        train = train.map(flip, num_parallel_calls=auto).batch(setup.batch, drop_remainder=True).prefetch(auto)
        held_out_rows = rows.filter(lambda _, __, row_fold, k=k: row_fold == k)
        held_out = held_out_rows.map(decode, num_parallel_calls=auto).batch(256).prefetch(auto)
        backbone = getattr(keras.applications, setup.architecture)
        width = {"alpha": alpha} if setup.architecture.startswith("MobileNet") else {}
        body = backbone(
            input_shape=(setup.size, setup.size, 3), include_top=False, weights=None, pooling="avg", **width
        )
        top = keras.layers.Dense(classes, activation="softmax")(keras.layers.Dropout(0.2)(body.output))
        model = keras.Model(body.input, top)
        model.compile(keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        steps = int((fold != k).sum()) // setup.batch
        model.fit(train, steps_per_epoch=steps, epochs=setup.epochs, validation_data=held_out, verbose=0)
        rows_of_fold = np.flatnonzero(fold == k)  # in the order of the record files, the same for every model
        probs[rows_of_fold] += model.predict(held_out.map(lambda image, _: image), verbose=0)
        if flipped:
            mirrored = held_out.map(lambda image, _: tf.image.flip_left_right(image), num_parallel_calls=auto)
            probs[rows_of_fold] += model.predict(mirrored, verbose=0)
        true_labels[rows_of_fold] = [int(label) for _, label, _ in held_out_rows]
    return float((probs.argmax(1) == true_labels).mean()), len(fold)


def goldfold(setup: Setup, folder: Path) -> tuple[float, int]:
    """(held-out accuracy, images)"""
    from competition.config.params_file import load_params
    from competition.training.device import open_device
    from competition.training.fold_rows import FoldRows
    from competition.training.trainer import Trainer

    images, classes = load(setup, folder, ram=2 * 10**9)
    member, device = member_of(setup), open_device(load_params(ROOT / "params.yaml").device)
    trainer = Trainer(FoldRows(member, images, classes), "accuracy", device, setup.predict_batch)
    correct = 0.0
    for k in range(setup.folds):
        trainer.train(k, member.train, None, lambda *_: None, lambda: False)
        correct += trainer.score(k) * float((images.folds == k).sum())
    return correct / len(images.ids), len(images.ids)


IMPLEMENTATIONS: dict[str, Callable[[Setup, Path], tuple[float, int]]] = {"notebook": notebook, "goldfold": goldfold}


def timed(implementation: str, setup: Setup, folder: Path) -> dict[str, float]:
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    wall, cpu = time.perf_counter(), time.process_time()
    accuracy, images = IMPLEMENTATIONS[implementation](setup, folder)
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "accuracy": accuracy,
        "images": images,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--implementation", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    setup = setup_of(options)
    if options.implementation:
        print(json.dumps(timed(options.implementation, setup, Path(options.folder))))
        return
    timings = {}
    with scratch() as folder:
        write(setup, Path(folder))
        for implementation in IMPLEMENTATIONS:
            command = [sys.executable, "-m", "benchmarks.notebook_way", *sys.argv[1:]]
            command += ["--implementation", implementation, "--folder", folder]
            environment = {
                **os.environ,
                "KERAS_BACKEND": "tensorflow",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "PYTHONWARNINGS": "ignore",
            }
            completed = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            timings[implementation] = json.loads(completed.stdout.splitlines()[-1])
            timing = timings[implementation]
            print(
                f"{implementation:9} {timing['wall']:7.1f} s ({timing['cpu']:.1f} s of processor time), "
                f"held-out accuracy {timing['accuracy']:.3f}",
                flush=True,
            )
    notebook_timing, goldfold_timing = timings["notebook"], timings["goldfold"]
    wall_ratio, cpu_ratio = (notebook_timing[key] / goldfold_timing[key] for key in ("wall", "cpu"))
    print(
        f"README: {describe(setup, int(goldfold_timing['images']))}: {goldfold_timing['wall']:.0f} s against "
        f"{notebook_timing['wall']:.0f} s the notebook way, {wall_ratio:.2f} times as fast ({cpu_ratio:.2f} in processor time)"
    )


if __name__ == "__main__":
    main()
