"""Train the same folds as public notebooks do: the reference of benchmarks.reference_job.

For every fold a new Keras model, compiled by `fit` anew; TFRecords parsed and JPEGs decoded in every epoch by tf.data, which
reads and decodes in parallel; validation after every epoch; predictions of the held-out fold.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.photos import Setup, fold_of, shards


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
