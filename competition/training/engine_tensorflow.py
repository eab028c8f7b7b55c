"""The engine on TensorFlow: one replica step under the device's strategy, run by our own loop or by Keras `fit`.

Both run the same `_replica_step` and give the same weights. `loop: auto` is our own loop, because of these measurements
for a new MobileNetV2 (96 px, batch 16, two CPU cores, seconds of processor time, docs/speed.md): until the end of the
first step 2.2, then 0.11 per step; `fit` around the same step 2.2 and 0.14; `fit` with a Keras optimizer 11.6 and 0.12; our loop
on JAX 21.9 and 1.01. Nearly all of the first is TensorFlow building and optimizing the graph.
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
    LOSS_SCALE,
    MOMENTS,
    CompiledIn,
    State,
    View,
    average_name,
    check_state,
    collect_probabilities,
    is_random,
    layer_depths,
    saved_variables,
    seed_state,
    weights_of,
    with_weights,
)
from competition.training.fused_batch_norm import fuse_batch_norm
from competition.training.keras_fit import FitModel, without_sharding
from competition.training.optimizer import (
    FIRST_LOSS_SCALE,
    LOSSES,
    FlatVector,
    StepScalars,
    StepValues,
    adamw,
    clip_gradient,
    decayed_weights,
    next_loss_scale,
    step_table,
    unpack_row,
    unscaled,
    update_average,
)
from competition.training.predictor_tensorflow import Predictor


class TensorFlowEngine:
    """Implements `Engine`. All state lives in TensorFlow variables under the device's strategy."""

    def __init__(
        self, build: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device, compiled_in: CompiledIn
    ) -> None:
        self.batch, self.predict_batch = batch, predict_batch
        self.uses_fit, self.keeps_average = compiled_in.use_fit, compiled_in.keep_average
        self._losses = LOSSES[compiled_in.target]
        self._micro_batches, self._strategy = compiled_in.accumulate, device.strategy
        self._is_single_device = device.replicas == 1 and device.kind != "tpu"
        with self._strategy.scope():
            self.model = build()
            if self._is_single_device and device.kind == "cpu":
                fuse_batch_norm(self.model)
            self._saved = [(name, v.value) for name, v in saved_variables(self.model)]
            trainable = [v.value for v in self.model.trainable_variables]
            self._layout = FlatVector(tuple(tuple(v.shape) for v in trainable))
            self._moments = [tf.Variable(tf.zeros(sum(self._layout.sizes)), trainable=False) for _ in MOMENTS]
            followed = [(name, v) for name, v in self._saved if self.keeps_average and v.dtype == tf.float32]
            self._averaged_names, self._followed = [name for name, _ in followed], [v for _, v in followed]
            self._average_layout = FlatVector(tuple(tuple(v.shape) for v in self._followed))
            self._average = tf.Variable(self._average_layout.flatten(self._followed), trainable=False)
            self._scaling = tf.Variable(FIRST_LOSS_SCALE, trainable=False) if compiled_in.scale_loss else None
            self._fit_model = FitModel(self._fit_step) if self.uses_fit else None
        self._random = [v.value for v in self.model.non_trainable_variables if is_random(v)]
        self._depths, self._is_head = layer_depths(self.model)
        self._initial_state = self.state()
        self._state_shapes = {name: value.shape for name, value in self._initial_state.items()}
        # AutoGraph converts the loop over steps only; without this it would convert everything the step calls.
        self._unconverted_step = tf.autograph.experimental.do_not_convert(self._replica_step)
        # XLA fuses the many small operations of a step on a GPU; on a CPU its convolutions are 18 times slower. With several
        # GPUs the step exchanges gradients, which XLA cannot compile here.
        use_xla = self._is_single_device and device.kind == "gpu"
        if use_xla:
            self._unconverted_step = tf.function(self._replica_step, jit_compile=True, autograph=False)
        self._compiled_steps = tf.function(self._steps)
        # One row per step of a call. A variable may change its length; an argument would be traced anew for each length.
        columns = len(StepScalars._fields) - 1 + len(self.model.trainable_variables)
        self._step_table = tf.Variable(np.zeros((0, columns), np.float32), shape=(None, columns), trainable=False)
        self._exchange = tf.function(self._exchange_averages, autograph=False)
        self.predictor = Predictor(self.model, self._strategy, compiled_in.target, use_xla)

    def reset(self, seed: int) -> None:
        self.load(self._initial_state)
        self.reseed(seed, 0)

    def reseed(self, seed: int, step: int) -> None:
        for layer, variable in enumerate(self._random):
            state = seed_state(seed, layer, step * self._micro_batches)
            variable.assign(np.asarray(state, variable.dtype.as_numpy_dtype))

    def distributed(self, batches: tf.data.Dataset) -> Any:
        batches = without_sharding(batches)
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
        dispatch = partial(self.predictor.predict_views, tuple(views))
        return self._with_averages(partial(collect_probabilities, batches, rows, dispatch, np.asarray))

    def view_seconds(self, view: View, images: np.ndarray) -> float:
        return self.predictor.view_seconds(view, images)

    def state(self) -> State:
        state = {name: variable.numpy() for name, variable in self._saved}
        state |= {name: moment.numpy() for name, moment in zip(MOMENTS, self._moments, strict=True)}
        if self._scaling is not None:
            state[LOSS_SCALE] = self._scaling.numpy()
        averages = self._average_layout.split(self._average.numpy())
        return state | {average_name(n): value for n, value in zip(self._averaged_names, averages, strict=True)}

    def load(self, state: State) -> None:
        check_state(self._state_shapes, state)
        for name, variable in [*self._saved, *zip(MOMENTS, self._moments, strict=True)]:
            variable.assign(state[name])
        if self._scaling is not None:
            self._scaling.assign(state[LOSS_SCALE])
        averages = [state[average_name(name)].ravel() for name in self._averaged_names]
        self._average.assign(np.concatenate([np.zeros(0, np.float32), *averages]))

    def weights(self) -> State:
        return weights_of(self.state())

    def load_weights(self, weights: State) -> None:
        self.load(with_weights(self._initial_state, weights))

    def all_gather(self, number: int) -> list[int]:
        return [number]

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
        gradient = context.all_reduce(tf.distribute.ReduceOp.SUM, self._layout.flatten(gradients))
        context.merge_call(self._update, (gradient, row))
        return loss

    def _gradients(
        self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, scalars: StepScalars
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Gradients and loss, summed over the micro-batches.

        The loop over micro-batches is unrolled, because batch norm cannot reduce over replicas from within a TensorFlow
        loop. Control dependencies make them run one after the other, so that one at a time is in memory.
        """
        trainable = [v.value for v in self.model.trainable_variables]
        total: list[tf.Tensor] = []
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
                objective = part if self._scaling is None else part * self._scaling.read_value()[0]
            gradients = tape.gradient(objective, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else gradients
            loss += part
        return total, loss

    def _update(self, strategy: Any, gradient: tf.Tensor, row: tf.Tensor) -> None:
        """Update every replica's copy of the variables.  gradient: (P,), of all replicas; Keras clips each replica's."""

        def step(
            m: tf.Variable,
            v: tf.Variable,
            averaged: tuple[tf.Variable, list[tf.Variable]],
            scaling: tf.Variable | None,
            trainable: list[tf.Variable],
            inputs: tuple[tf.Tensor, tf.Tensor],
        ) -> None:
            (average, followed), (gradient, row) = averaged, inputs
            scalars, old_scaling = unpack_row(row), None if scaling is None else scaling.read_value()
            gradient, is_finite = unscaled(gradient, old_scaling)
            factors = self._layout.spread(scalars.rate_factors, list(zip(self._depths, self._is_head, strict=True)))
            clipped = clip_gradient(gradient, tf.sign(factors), scalars)
            decayed = self._layout.flatten(decayed_weights([x.read_value() for x in trainable]))
            rates = scalars.learning_rate * factors
            change, new_m, new_v = adamw(clipped, m.read_value(), v.read_value(), decayed, rates, scalars)
            if scaling is not None:  # a step whose gradient overflowed is left out
                old = (tf.zeros_like(change), m.read_value(), v.read_value())
                change, new_m, new_v = (
                    tf.where(is_finite, a, b) for a, b in zip((change, new_m, new_v), old, strict=True)
                )
                scaling.assign(next_loss_scale(old_scaling, is_finite))
            m.assign(new_m)
            v.assign(new_v)
            for x, part in zip(trainable, tf.split(change, self._layout.sizes), strict=True):
                x.assign_sub(tf.reshape(part, x.shape))
            if followed:
                weights = self._average_layout.flatten([x.read_value() for x in followed])
                average.assign(update_average(average.read_value(), weights, scalars))

        first, second = self._moments
        trainable = [v.value for v in self.model.trainable_variables]
        arguments = (second, (self._average, self._followed), self._scaling, trainable, (gradient, row))
        strategy.extended.update(first, step, arguments, group=True)

    def _with_averages(self, call: Callable[[], Any]) -> Any:
        """call() while the averages, where they are kept, are in the model's variables."""
        if not self.keeps_average:
            return call()
        self._exchange()
        try:
            return call()
        finally:
            self._exchange()

    def _exchange_averages(self) -> None:
        """Swap the model's variables and their averages."""

        def exchange(average: tf.Variable, followed: list[tf.Variable]) -> None:
            weights = self._average_layout.flatten([tf.identity(x) for x in followed])
            for x, part in zip(followed, tf.split(tf.identity(average), self._average_layout.sizes), strict=True):
                x.assign(tf.reshape(part, x.shape))
            average.assign(weights)

        self._strategy.extended.update(self._average, exchange, (self._followed,), group=True)

    def _fit_step(self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, repeated: tf.Tensor) -> tf.Tensor:
        """The replica step as Keras `fit` calls it. repeated: (B, 8 + T), the row of the step table once per image."""
        loss = self._replica_step(images, targets, weights, repeated[0])
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, loss)
