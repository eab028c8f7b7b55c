"""The same folds trained the way public notebooks do it, and by goldfold: wall time of both, and their ratio.

    python -m benchmarks.notebook_way --source photos.zip     # or no source: drawn images

The notebook way: for every fold a new Keras model, compiled by `fit` anew; TFRecords parsed and JPEGs decoded in every
epoch by tf.data, which reads and decodes in parallel; validation after every epoch; predictions of the held-out fold.
goldfold: images decoded once, one compiled step for all folds, the same epochs, batches, flips and held-out scores.
Each in a process of its own, one after the other; starting TensorFlow is in neither time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.photos import ROOT, Setup, arguments, fold_of, load, member_of, scratch, setup_of, shards, told, write


def notebook(setup: Setup, folder: Path) -> tuple[float, int]:
    """(held-out accuracy, images)"""
    import keras
    import tensorflow as tf

    labels = np.loadtxt(folder / "labels.csv", delimiter=",", usecols=1, dtype=int)
    fold, classes = fold_of(labels, setup.folds), int(labels.max()) + 1
    features = {
        name: tf.io.FixedLenFeature([], kind)
        for name, kind in (("image", tf.string), ("id", tf.string), ("class", tf.int64))
    }
    fold_of_row = tf.constant(fold)

    def parsed(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        row = tf.io.parse_single_example(serialized, features)
        number = tf.strings.to_number(tf.strings.substr(row["id"], 1, 6), tf.int32)
        return row["image"], row["class"], fold_of_row[number]

    def pixels(image: tf.Tensor, label: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        decoded = tf.image.resize(tf.io.decode_jpeg(image, channels=3), (setup.size, setup.size))
        return tf.ensure_shape(decoded, (setup.size, setup.size, 3)) / 127.5 - 1.0, label

    def flipped(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.image.random_flip_left_right(image), label

    auto = tf.data.AUTOTUNE
    right, seen = 0.0, 0
    for k in range(setup.folds):
        keras.utils.clear_session()
        rows = tf.data.TFRecordDataset(shards(folder), num_parallel_reads=auto).map(parsed, num_parallel_calls=auto)
        train = (
            rows.filter(lambda _, __, own, k=k: own != k).repeat().shuffle(2048).map(pixels, num_parallel_calls=auto)
        )
        train = train.map(flipped, num_parallel_calls=auto).batch(setup.batch, drop_remainder=True).prefetch(auto)
        own_rows = rows.filter(lambda _, __, own, k=k: own == k)
        held_out = own_rows.map(pixels, num_parallel_calls=auto).batch(256).prefetch(auto)
        backbone = getattr(keras.applications, setup.architecture)
        named = {"alpha": setup.alpha} if setup.architecture.startswith("MobileNet") else {}
        body = backbone(
            input_shape=(setup.size, setup.size, 3), include_top=False, weights=None, pooling="avg", **named
        )
        top = keras.layers.Dense(classes, activation="softmax")(keras.layers.Dropout(0.2)(body.output))
        model = keras.Model(body.input, top)
        model.compile(keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        steps = int((fold != k).sum()) // setup.batch
        model.fit(train, steps_per_epoch=steps, epochs=setup.epochs, validation_data=held_out, verbose=0)
        probs = model.predict(held_out.map(lambda image, _: image), verbose=0)
        truth = np.array([int(label) for _, label, _ in own_rows])
        right, seen = right + float((probs.argmax(1) == truth).sum()), seen + len(truth)
    return right / seen, seen


def goldfold(setup: Setup, folder: Path) -> tuple[float, int]:
    """(held-out accuracy, images)"""
    from competition.config.params_file import load_params
    from competition.training.device import open_device
    from competition.training.trainer import Trainer

    images, classes = load(setup, folder, ram=2 * 10**9)
    member, device = member_of(setup), open_device(load_params(ROOT / "params.yaml").device)
    trainer = Trainer(member, images, classes, "accuracy", device, setup.predict_batch)
    right = 0.0
    for k in range(setup.folds):
        trainer.train(k, member.train, None, lambda *_: None, lambda: False)
        right += trainer.score(k) * float((images.folds == k).sum())
    return right / len(images.ids), len(images.ids)


WAYS: dict[str, Callable[[Setup, Path], tuple[float, int]]] = {"notebook": notebook, "goldfold": goldfold}


def timed(way: str, setup: Setup, folder: Path) -> dict[str, float]:
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    wall, work = time.perf_counter(), time.process_time()
    accuracy, images = WAYS[way](setup, folder)
    return {
        "wall": time.perf_counter() - wall,
        "work": time.process_time() - work,
        "accuracy": accuracy,
        "images": images,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    setup = setup_of(options)
    if options.way:
        print(json.dumps(timed(options.way, setup, Path(options.folder))))
        return
    found = {}
    with scratch() as folder:
        write(setup, Path(folder))
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.notebook_way", *sys.argv[1:], "--way", way, "--folder", folder]
            around = {
                **os.environ,
                "KERAS_BACKEND": "tensorflow",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "PYTHONWARNINGS": "ignore",
            }
            done = subprocess.run(command, cwd=ROOT, env=around, stdout=subprocess.PIPE, text=True, check=True)
            found[way] = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{way:9} {found[way]['wall']:7.1f} s ({found[way]['work']:.1f} s of processor time), "
                f"held-out accuracy {found[way]['accuracy']:.3f}",
                flush=True,
            )
    slow, fast = found["notebook"], found["goldfold"]
    print(
        f"README: {told(setup, int(fast['images']))}: {fast['wall']:.0f} s against {slow['wall']:.0f} s the notebook way, "
        f"{slow['wall'] / fast['wall']:.2f} times as fast ({slow['work'] / fast['work']:.2f} in processor time)"
    )


if __name__ == "__main__":
    main()
