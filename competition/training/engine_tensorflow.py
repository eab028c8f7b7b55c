"""The engine on TensorFlow: one replica step under the device's strategy, driven by our own loop or by Keras `fit`.

Both run the same `_replica_step` and give the same weights. `loop: auto` is the own loop, by measurement: for a new
MobileNetV2 (96 px, batch 16, two CPU cores, seconds of processor time) the first step is done after 9.9 and each of the next
takes 0.15; `fit` around the same step 10.0 and 0.22; `fit` with an optimizer of Keras 16.5 and 0.13; the own loop on JAX
29.3 and 1.06 (benchmarks/first_step.py). Nearly all of the first is TensorFlow building and optimizing the graph.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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
    saved_variables,
    seed_state,
    weights_of,
    with_weights,
)
from competition.training.optimizer import (
    StepScalars,
    StepValues,
    adamw,
    clip_gradients,
    losses,
    step_table,
    unpack_row,
    update_average,
    variable_rates,
)


class TensorFlowEngine:
    """All state lives in TensorFlow variables under the device's strategy."""

    def __init__(
        self, build: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device, compiled_in: CompiledIn
    ) -> None:
        self.batch, self.predict_batch = batch, predict_batch
        self.fits, self.averaged = compiled_in.fit, compiled_in.averaged
        self._pieces, self._replicas, self._strategy = compiled_in.accumulate, device.replicas, device.strategy
        self._one_device = device.replicas == 1 and device.kind != "tpu"
        with self._strategy.scope():
            self.model = build()
            self._saved = [(name, v.value) for name, v in saved_variables(self.model)]
            self._averages = [tf.Variable(v, trainable=False) for _, v in self._saved if self.averaged]
            self._moments = [
                (tf.Variable(tf.zeros_like(v), trainable=False), tf.Variable(tf.zeros_like(v), trainable=False))
                for v in (w.value for w in self.model.trainable_variables)
            ]
            self._fitted = _Fit(self._fit_step) if self.fits else None
        self._random = [v.value for v in self.model.non_trainable_variables if is_random(v)]
        self._depths, self._head = layer_depths(self.model)
        self._start = self.state()
        # Autograph is for the loop over steps alone: it would go through all that is called from it.
        self._one_step = tf.autograph.experimental.do_not_convert(self._replica_step)
        self._run = tf.function(self._steps)
        # A row for each step of a call. As a variable its length may change; as an argument each length is traced anew.
        columns = len(StepScalars._fields) - 1 + len(self.model.trainable_variables)
        self._numbers = tf.Variable(np.zeros((0, columns), np.float32), shape=(None, columns), trainable=False)
        self._exchange = tf.function(self._exchange_averages, autograph=False)
        self._ask = tf.function(self._probabilities, autograph=False)
        self._seen: dict[View, Any] = {}

    def reset(self, seed: int) -> None:
        self.load(self._start)
        self.reseed(seed, 0)

    def reseed(self, seed: int, step: int) -> None:
        for place, variable in enumerate(self._random):
            variable.assign(np.asarray(seed_state(seed, place, step * self._pieces), variable.dtype.as_numpy_dtype))

    def distributed(self, batches: tf.data.Dataset) -> Any:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        batches = batches.with_options(options)
        if self.fits:
            return batches  # Keras distributes it
        return iter(batches if self._one_device else self._strategy.experimental_distribute_dataset(batches))

    def train(self, batches: Any, rates: np.ndarray, step: int, values: StepValues) -> float:
        """batches: what distributed() gave; where `fits`, from a dataset that starts at `step`."""
        numbers = step_table(rates, step, values, self._depths, self._head)
        if self._fitted is not None:
            return self._fitted.take(batches, numbers, self.batch)
        self._numbers.assign(numbers)
        return float(self._run(batches)) / len(rates)

    def probabilities(
        self, batches: Iterator[tuple[np.ndarray, np.ndarray]], rows: np.ndarray, views: Sequence[View]
    ) -> np.ndarray:
        if self.averaged:
            self._exchange()
        try:
            return collect_probabilities(batches, rows, lambda images: self._under(views, self._shared_out(images)))
        finally:
            if self.averaged:
                self._exchange()

    def state(self) -> State:
        return {name: variable.numpy() for name, variable in self._variables()}

    def load(self, state: State) -> None:
        own = dict(self._variables())
        check_state({name: tuple(variable.shape) for name, variable in own.items()}, state)
        for name, variable in own.items():
            variable.assign(state[name])

    def weights(self) -> State:
        return weights_of(self.state())

    def load_weights(self, weights: State) -> None:
        self.load(with_weights(self._start, weights))

    def all_gather(self, number: int) -> list[int]:
        return [number]

    def _variables(self) -> list[tuple[str, Any]]:
        pairs = zip(moment_names(len(self._moments)), self._moments, strict=True)
        moments = [named for names, both in pairs for named in zip(names, both, strict=True)]
        averages = [(average_name(name), a) for (name, _), a in zip(self._saved, self._averages, strict=False)]
        return [*self._saved, *moments, *averages]

    def _steps(self, batches: Any) -> tf.Tensor:
        total, numbers = tf.constant(0.0), self._numbers.read_value()
        for n in tf.range(tf.shape(numbers)[0]):
            parts = self._strategy.run(self._one_step, (*next(batches), numbers[n]))
            total += self._strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)
        return total

    def _replica_step(self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        """One step of one replica on its share of the batch. Returns its part of the loss."""
        now = unpack_row(row)
        gradients, loss = self._gradients(images, targets, weights, now)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # Clipped after the sum, by the norm of the whole gradient; Keras clips what each replica has.
        context.merge_call(self._update, (clip_gradients(gradients, now), variable_rates(now), now))
        return loss

    def _gradients(
        self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, now: StepScalars
    ) -> tuple[list[Any], Any]:
        """Summed over the pieces of the batch.

        The pieces are unrolled, because batch norm cannot talk to the other replicas from within a TensorFlow loop, and
        tied one behind the other, so that one at a time is in memory.
        """
        trainable = [v.value for v in self.model.trainable_variables]
        total: list[Any] = []
        loss = tf.constant(0.0)
        for piece in range(self._pieces):
            with tf.control_dependencies(total):
                # Every n-th image: the same pieces whatever the number of replicas.
                mine = [tf.identity(x[piece :: self._pieces]) for x in (images, targets, weights)]
            with tf.GradientTape() as tape:
                logits = self.model(tf.cast(mine[0], tf.float32), training=True)
                part = tf.reduce_sum(losses(mine[1], logits, mine[2], now.focal_gamma)) / self.batch
            gradients = tape.gradient(part, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else gradients
            loss += part
        return total, loss

    def _update(self, strategy: Any, gradients: list[Any], rates: list[Any], now: StepScalars) -> None:
        """On every replica's own copy of each variable."""

        def step(x: Any, g: Any, m: Any, v: Any, rate: Any, now: StepScalars) -> None:
            after = adamw(x.read_value(), g, m.read_value(), v.read_value(), rate, now)
            for variable, value in zip((x, m, v), after, strict=True):
                variable.assign(value)

        def follow(average: Any, x: Any, now: StepScalars) -> None:
            average.assign(update_average(average.read_value(), x.read_value(), now))

        learned = zip(self.model.trainable_variables, gradients, self._moments, rates, strict=True)
        for variable, gradient, (m, v), rate in learned:
            strategy.extended.update(variable.value, step, (gradient, m, v, rate, now), group=True)
        for (_, variable), average in zip(self._saved, self._averages, strict=False):
            strategy.extended.update(average, follow, (variable, now), group=True)

    def _exchange_averages(self) -> None:
        """The averages into the model and back: what evaluates the model need not know of them."""

        def exchange(x: Any, average: Any) -> None:
            before, after = tf.identity(x), tf.identity(average)
            x.assign(after)
            average.assign(before)

        for (_, variable), average in zip(self._saved, self._averages, strict=True):
            self._strategy.extended.update(variable, exchange, (average,), group=True)

    def _fit_step(self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, repeated: tf.Tensor) -> tf.Tensor:
        loss = self._replica_step(images, targets, weights, repeated[0])
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, loss)

    def _shared_out(self, images: np.ndarray) -> Any:
        share = len(images) // self._replicas
        if self._replicas == 1:
            return tf.constant(images)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(images[context.replica_id_in_sync_group * share :][:share])
        )

    def _under(self, views: Sequence[View], images: Any) -> np.ndarray:
        """(B, V, C)"""
        for view in views:
            if view not in self._seen:
                seen = apply_view(view)
                self._seen[view] = tf.function(partial(self._strategy.run, seen), autograph=False)
        return np.stack([self._ask(self._seen[view](args=(images,))).numpy() for view in views], axis=1)

    def _probabilities(self, images: Any) -> tf.Tensor:
        def ask(local: tf.Tensor) -> tf.Tensor:
            return tf.nn.softmax(self.model(local, training=False))

        return self._strategy.gather(self._strategy.run(ask, (images,)), axis=0)


class _Fit(keras.Model):
    """Keras `fit` around a step: its data, callbacks, distribution; none of its optimizers, which clip per replica."""

    def __init__(self, step: Callable[..., tf.Tensor]) -> None:
        super().__init__()
        self._step = step
        self.built = True
        self.compile(optimizer=None, loss=None, jit_compile=False)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        (images, targets, weights), repeated = data
        return {"loss": self._step(images, targets, weights, repeated)}

    def take(self, batches: tf.data.Dataset, numbers: np.ndarray, batch: int) -> float:
        """len(numbers) steps; returns the mean loss. A batch travels with its row of numbers, once per image, so that
        Keras can share both out."""
        repeated = tf.data.Dataset.from_tensor_slices(numbers).map(lambda row: tf.repeat(row[None], batch, axis=0))
        found: list[float] = []
        note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: found.append(float(logs["loss"])))
        dataset = tf.data.Dataset.zip((batches, repeated))
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
        self.fit(dataset, steps_per_epoch=len(numbers), shuffle=False, verbose=0, callbacks=[note])
        return float(np.mean(found))
