"""The engine on TensorFlow: one replica step under the device's strategy, run by our own loop or by Keras `fit`.

Both run the same `_replica_step` and give the same weights. `loop: auto` is our own loop, because of these measurements
for a new MobileNetV2 (96 px, batch 16, two CPU cores, seconds of processor time, benchmarks/first_step.py): until the end
of the first step 9.9, then 0.15 per step; `fit` around the same step 10.0 and 0.22; `fit` with a Keras optimizer 16.5 and
0.13; our loop on JAX 29.3 and 1.06. Nearly all of the first is TensorFlow building and optimizing the graph.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from competition.training.batch_augmentation import augmented
from competition.training.device import Device
from competition.training.engine import (
    CompiledIn,
    State,
    View,
    apply_view,
    average_name,
    check_state,
    collect_probabilities,
    is_random,
    layer_depths,
    moment_names,
    output_of_logits,
    saved_variables,
    seed_state,
    weights_of,
    with_weights,
)
from competition.training.optimizer import (
    LOSSES,
    StepScalars,
    StepValues,
    adamw,
    clip_gradients,
    step_table,
    unpack_row,
    update_average,
    variable_rates,
)


class TensorFlowEngine:
    """Implements `Engine`. All state lives in TensorFlow variables under the device's strategy."""

    def __init__(
        self, build: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device, compiled_in: CompiledIn
    ) -> None:
        self.batch, self.predict_batch = batch, predict_batch
        self.uses_fit, self.keeps_average = compiled_in.use_fit, compiled_in.keep_average
        self._losses, self._target = LOSSES[compiled_in.target], compiled_in.target
        self._micro_batches, self._replicas, self._strategy = compiled_in.accumulate, device.replicas, device.strategy
        self._is_single_device = device.replicas == 1 and device.kind != "tpu"
        with self._strategy.scope():
            self.model = build()
            self._saved = [(name, v.value) for name, v in saved_variables(self.model)]
            self._averages = [tf.Variable(v, trainable=False) for _, v in self._saved if self.keeps_average]
            self._moments = [
                (tf.Variable(tf.zeros_like(v), trainable=False), tf.Variable(tf.zeros_like(v), trainable=False))
                for v in (w.value for w in self.model.trainable_variables)
            ]
            self._fit_model = _FitModel(self._fit_step) if self.uses_fit else None
        self._random = [v.value for v in self.model.non_trainable_variables if is_random(v)]
        self._depths, self._is_head = layer_depths(self.model)
        self._initial_state = self.state()
        # AutoGraph converts the loop over steps only; without this it would convert everything the step calls.
        self._unconverted_step = tf.autograph.experimental.do_not_convert(self._replica_step)
        self._compiled_steps = tf.function(self._steps)
        # One row per step of a call. A variable may change its length; an argument would be traced anew for each length.
        columns = len(StepScalars._fields) - 1 + len(self.model.trainable_variables)
        self._step_table = tf.Variable(np.zeros((0, columns), np.float32), shape=(None, columns), trainable=False)
        self._exchange = tf.function(self._exchange_averages, autograph=False)
        self._network = tf.function(self._probabilities, autograph=False)
        self._view_programs: dict[View, Any] = {}

    def reset(self, seed: int) -> None:
        self.load(self._initial_state)
        self.reseed(seed, 0)

    def reseed(self, seed: int, step: int) -> None:
        for layer, variable in enumerate(self._random):
            state = seed_state(seed, layer, step * self._micro_batches)
            variable.assign(np.asarray(state, variable.dtype.as_numpy_dtype))

    def distributed(self, batches: tf.data.Dataset) -> Any:
        batches = _without_sharding(batches)
        if self.uses_fit:
            return batches  # Keras distributes it
        return iter(batches if self._is_single_device else self._strategy.experimental_distribute_dataset(batches))

    def train(self, batches: Any, rates: np.ndarray, step: int, values: StepValues) -> float:
        """batches: the result of distributed(); if `uses_fit`, of a dataset that starts at `step`."""
        table = step_table(rates, step, values, self._depths, self._is_head)
        if self._fit_model is not None:
            return self._fit_model.run_steps(batches, table, self.batch)
        self._step_table.assign(table)
        return float(self._compiled_steps(batches)) / len(rates)

    def probabilities(
        self, batches: Iterator[tuple[np.ndarray, np.ndarray]], rows: np.ndarray, views: Sequence[View]
    ) -> np.ndarray:
        if self.keeps_average:
            self._exchange()
        try:
            return collect_probabilities(batches, rows, lambda images: self._predict_views(views, images))
        finally:
            if self.keeps_average:
                self._exchange()

    def state(self) -> State:
        return {name: variable.numpy() for name, variable in self._variables()}

    def load(self, state: State) -> None:
        variables = dict(self._variables())
        check_state({name: tuple(variable.shape) for name, variable in variables.items()}, state)
        for name, variable in variables.items():
            variable.assign(state[name])

    def weights(self) -> State:
        return weights_of(self.state())

    def load_weights(self, weights: State) -> None:
        self.load(with_weights(self._initial_state, weights))

    def all_gather(self, number: int) -> list[int]:
        return [number]

    def _variables(self) -> list[tuple[str, Any]]:
        """(name, variable) of everything a checkpoint holds."""
        pairs = zip(moment_names(len(self._moments)), self._moments, strict=True)
        moments = [named for names, variables in pairs for named in zip(names, variables, strict=True)]
        return [*self._saved, *moments, *((average_name(name), average) for name, _, average in self._averaged())]

    def _averaged(self) -> list[tuple[str, Any, Any]]:
        """(name, variable, its moving average); empty where no average is kept."""
        pairs = zip(self._saved, self._averages, strict=True) if self.keeps_average else ()
        return [(name, variable, average) for (name, variable), average in pairs]

    def _steps(self, batches: Any) -> tf.Tensor:
        """One step per row of the step table. Returns the sum of the losses."""
        total, table = tf.constant(0.0), self._step_table.read_value()
        for n in tf.range(tf.shape(table)[0]):
            parts = self._strategy.run(self._unconverted_step, (*next(batches), table[n]))
            total += self._strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)
        return total

    def _replica_step(self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        """One step of one replica on its share of the batch. Returns its share of the loss."""
        scalars = unpack_row(row)
        images, targets = augmented(images, targets)
        gradients, loss = self._gradients(images, targets, weights, scalars)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # Clipped after the sum, by the norm of the whole gradient; Keras clips each replica's gradient.
        context.merge_call(self._update, (clip_gradients(gradients, scalars), variable_rates(scalars), scalars))
        return loss

    def _gradients(
        self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, scalars: StepScalars
    ) -> tuple[list[Any], Any]:
        """Gradients and loss, summed over the micro-batches.

        The loop over micro-batches is unrolled, because batch norm cannot reduce over replicas from within a TensorFlow
        loop. Control dependencies make them run one after the other, so that one at a time is in memory.
        """
        trainable = [v.value for v in self.model.trainable_variables]
        total: list[Any] = []
        loss = tf.constant(0.0)
        for n in range(self._micro_batches):
            with tf.control_dependencies(total):
                # Every n-th image: the same micro-batches whatever the number of replicas.
                inputs, labels, row_weights = (
                    tf.identity(x[n :: self._micro_batches]) for x in (images, targets, weights)
                )
            with tf.GradientTape() as tape:
                logits = self.model(tf.cast(inputs, tf.float32), training=True)
                part = tf.reduce_sum(self._losses(labels, logits, row_weights, scalars.focal_gamma)) / self.batch
            gradients = tape.gradient(part, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else gradients
            loss += part
        return total, loss

    def _update(self, strategy: Any, gradients: list[Any], rates: list[Any], scalars: StepScalars) -> None:
        """Update every replica's copy of each variable."""

        def step(x: Any, g: Any, m: Any, v: Any, rate: Any, scalars: StepScalars) -> None:
            updated = adamw(x.read_value(), g, m.read_value(), v.read_value(), rate, scalars)
            for variable, value in zip((x, m, v), updated, strict=True):
                variable.assign(value)

        def follow(average: Any, x: Any, scalars: StepScalars) -> None:
            average.assign(update_average(average.read_value(), x.read_value(), scalars))

        learned = zip(self.model.trainable_variables, gradients, self._moments, rates, strict=True)
        for variable, gradient, (m, v), rate in learned:
            strategy.extended.update(variable.value, step, (gradient, m, v, rate, scalars), group=True)
        for _, variable, average in self._averaged():
            strategy.extended.update(average, follow, (variable, scalars), group=True)

    def _exchange_averages(self) -> None:
        """Swap the model's variables and their averages, before and after prediction."""

        def exchange(x: Any, average: Any) -> None:
            old, new = tf.identity(x), tf.identity(average)
            x.assign(new)
            average.assign(old)

        for _, variable, average in self._averaged():
            self._strategy.extended.update(variable, exchange, (average,), group=True)

    def _fit_step(self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, repeated: tf.Tensor) -> tf.Tensor:
        """The replica step as Keras `fit` calls it. repeated: (B, 8 + T), the row of the step table once per image."""
        loss = self._replica_step(images, targets, weights, repeated[0])
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, loss)

    def _distribute_images(self, images: np.ndarray) -> Any:
        """Give each replica an equal share of (B, H, W, 3) images."""
        share = len(images) // self._replicas
        if self._replicas == 1:
            return tf.constant(images)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(images[context.replica_id_in_sync_group * share :][:share])
        )

    def _predict_views(self, views: Sequence[View], images: np.ndarray) -> np.ndarray:
        """(B, V, C) probabilities of (B, H, W, 3) uint8 images."""
        distributed = self._distribute_images(images)
        for view in views:
            if view not in self._view_programs:
                self._view_programs[view] = tf.function(partial(self._strategy.run, apply_view(view)), autograph=False)
        inputs = (self._view_programs[view](args=(distributed,)) for view in views)
        return np.stack([self._network(x).numpy() for x in inputs], axis=1)

    def _probabilities(self, images: Any) -> tf.Tensor:
        def outputs(local: tf.Tensor) -> tf.Tensor:
            logits = self.model(local, training=False)
            return tf.nn.softmax(logits) if self._target == "single" else output_of_logits(logits, self._target)

        return self._strategy.gather(self._strategy.run(outputs, (images,)), axis=0)


class _FitModel(keras.Model):
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
        dataset = _without_sharding(tf.data.Dataset.zip((batches, repeated)))
        self.fit(dataset, steps_per_epoch=len(table), shuffle=False, verbose=0, callbacks=[record])
        return float(np.mean(step_losses))


def _without_sharding(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without automatic sharding: batches are global, and replicas get equal shares of each."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
