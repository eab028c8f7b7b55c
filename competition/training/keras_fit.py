"""Keras `fit` around a training step of our own."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class FitModel(keras.Model):
    """Runs our step by Keras `fit`: its data handling, callbacks and distribution, but not its optimizers."""

    def __init__(self, step: Callable[..., tf.Tensor]) -> None:
        super().__init__()
        self._step = step
        self.built = True
        self.compile(optimizer=None, loss=None, jit_compile=False)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        (images, targets, weights), repeated = data
        return {"loss": self._step(images, targets, weights, repeated)}

    def run_steps(self, batches: tf.data.Dataset, table: np.ndarray, batch: int) -> float:
        """Take one step per row of the step table. Returns the mean loss.

        Each batch travels with its row of the table, repeated once per image, so that Keras can distribute both.
        """
        repeated = tf.data.Dataset.from_tensor_slices(table).map(lambda row: tf.repeat(row[None], batch, axis=0))
        step_losses: list[float] = []
        record = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs: step_losses.append(float(logs["loss"]))
        )
        dataset = without_sharding(tf.data.Dataset.zip((batches, repeated)))
        self.fit(dataset, steps_per_epoch=len(table), shuffle=False, verbose=0, callbacks=[record])
        return float(np.mean(step_losses))


def without_sharding(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without automatic sharding: batches are global, and replicas get equal shares of each."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
