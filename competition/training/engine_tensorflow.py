"""The engine on TensorFlow: one replica step under the device's strategy, run by a loop of our own.

Until the end of the first step a new MobileNetV2 takes a fifth of the processor time that Keras's `fit` takes (docs/speed.md), nearly
all of it for building and optimizing the graph.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from competition.config.params import Train
from competition.training.cpu_layers import use_cpu_layers
from competition.training.device import Device
from competition.training.device_augmentation import augmented
from competition.training.engine import (
    LOSS_SCALE,
    MOMENTS,
    CompiledIn,
    Engine,
    State,
    View,
    apply_views,
    average_name,
    check_state,
    collect_probabilities,
    layer_groups,
    output_of_logits,
    saved_variables,
    view_groups,
)
from competition.training.optimizer import (
    FIRST_LOSS_SCALE,
    FlatVector,
    StepScalars,
    adamw_step,
    step_table,
    unpack_row,
    update_average,
)


class TensorFlowEngine(Engine):
    """All state is in TensorFlow variables under the device's strategy. `Engine` describes the public methods."""

    def __init__(self, network: Callable[[], keras.Model], device: Device, compiled_in: CompiledIn) -> None:
        super().__init__(compiled_in)
        self._strategy, self._replicas = device.strategy, device.replicas
        self._is_single_device = device.replicas == 1 and device.kind != "tpu"
        with self._strategy.scope():
            self._model = network()
            if self._is_single_device and device.kind == "cpu":
                use_cpu_layers(self._model)
            model_variables = {name: v.value for name, v in saved_variables(self._model)}
            trainable = [v.value for v in self._model.trainable_variables]
            self._layout = FlatVector(tuple(tuple(v.shape) for v in trainable), layer_groups(self._model))
            self._moments = [tf.Variable(tf.zeros(sum(self._layout.sizes)), trainable=False) for _ in MOMENTS]
            # The variables of the model whose averages are kept, by name; the averages are one vector.
            self._averaged_variables = {
                name: v for name, v in model_variables.items() if self.keeps_average and v.dtype == tf.float32
            }
            averaged = list(self._averaged_variables.values())
            self._averages_layout = FlatVector(tuple(tuple(v.shape) for v in averaged))
            self._averages = tf.Variable(self._averages_layout.flatten(averaged), trainable=False)
            self._scaling = tf.Variable(FIRST_LOSS_SCALE, trainable=False) if compiled_in.scale_loss else None
            # What `state` returns besides the averages.
            self._state_variables = model_variables | dict(zip(MOMENTS, self._moments, strict=True))
            self._state_variables |= {LOSS_SCALE: self._scaling} if compiled_in.scale_loss else {}
        self._initial_state = self.state()
        # XLA fuses the many small operations of a step on a GPU; on a CPU its convolutions are 18 times slower. With several
        # GPUs the step exchanges gradients, which XLA cannot compile here.
        use_xla = self._is_single_device and device.kind == "gpu"
        step = self._replica_step
        self._step_in_loop = tf.function(step, jit_compile=True, autograph=False) if use_xla else step
        # No AutoGraph: it writes generated code into the temporary folder, where a process that is killed leaves it.
        self._compiled_loop = tf.function(self._loop_over_steps, autograph=False)
        # One row per step of a call. A variable may change its length; an argument would be traced anew for each length.
        columns = len(StepScalars._fields) - 1 + len(self._model.trainable_variables)
        self._step_table = tf.Variable(np.zeros((0, columns), np.float32), shape=(None, columns), trainable=False)
        # Constants instead of the model's variables are not worth their compilation per fold model (docs/speed.md).
        self.network = tf.function(self.distributed_probabilities, autograph=False, jit_compile=use_xla or None)
        # Views -> the program that transforms a distributed batch by every view; V outputs.
        run = self._strategy.run
        self._view_program = cache(lambda views: tf.function(partial(run, apply_views(views)), autograph=False))

    def distributed(self, batches: tf.data.Dataset) -> Any:
        if self._is_single_device:
            return iter(batches)
        options = tf.data.Options()  # batches are global, and replicas get equal shares of each
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return iter(self._strategy.experimental_distribute_dataset(batches.with_options(options)))

    def take_steps(self, batches: Any, rates: np.ndarray, first_step: int, train: Train, per_epoch: int) -> float:
        self._step_table.assign(step_table(rates, first_step, train, per_epoch, self._layout.groups))
        return float(self._compiled_loop(batches)) / len(rates)

    def probabilities(self, batches: Iterator[np.ndarray], count: int, views: Sequence[View]) -> np.ndarray:
        def dispatch(images: np.ndarray) -> tf.Tensor:
            """(B, V, C) probabilities of (B, H, W, 3) uint8 images, which a GPU may still be computing."""
            probs = list[tf.Tensor]()
            if self._replicas == 1:
                distributed = tf.constant(images)
            else:
                shares = np.split(images, self._replicas)
                distributed = self._strategy.experimental_distribute_values_from_function(
                    lambda context: tf.constant(shares[context.replica_id_in_sync_group])
                )
            # The images of a group are freed before those of the next are made.
            for group in view_groups(tuple(views), images):
                probs += map(self.network, self._view_program(group)(args=(distributed,)))
            return tf.stack(probs, axis=1)

        # The averages, if they are kept, are in the model's variables until all rows are predicted.
        variables = self._averaged_variables.values()
        weights = [variable.numpy() for variable in variables]
        for variable, average in zip(variables, self._averages_layout.split(self._averages.numpy()), strict=True):
            variable.assign(average)
        try:
            return collect_probabilities(batches, count, dispatch)
        finally:
            for variable, value in zip(variables, weights, strict=True):
                variable.assign(value)

    def distributed_probabilities(self, images: Any) -> tf.Tensor:
        """(B, C) probabilities of a distributed batch of the network's input: what `network` compiles.

        For a regression the values (B, 1).
        """
        outputs = self._strategy.run(
            lambda local: output_of_logits(self._model(local, training=False), self._target), (images,)
        )
        return self._strategy.gather(outputs, axis=0)

    def state(self) -> State:
        state = {name: variable.numpy() for name, variable in self._state_variables.items()}
        averages = self._averages_layout.split(self._averages.numpy())
        return state | {average_name(n): value for n, value in zip(self._averaged_variables, averages, strict=True)}

    def load(self, state: State) -> None:
        check_state(self._initial_state, state)
        for name, variable in self._state_variables.items():
            variable.assign(state[name])
        averages = [state[average_name(name)].ravel() for name in self._averaged_variables]
        self._averages.assign(np.concatenate([np.zeros(0, np.float32), *averages]))

    def _loop_over_steps(self, batches: Any) -> tf.Tensor:
        """One step per row of the step table. Returns the sum of the losses, in float64: it is the same however steps are called."""
        table = self._step_table.read_value()

        def take_step(n: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            """Step n of the table on the next batch; total: of the losses so far."""
            parts = self._strategy.run(self._step_in_loop, (*next(batches), table[n]))
            loss = self._strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)
            return n + 1, total + tf.cast(loss, tf.float64)

        start = (tf.constant(0), tf.constant(0.0, tf.float64))
        return tf.while_loop(lambda n, _: n < tf.shape(table)[0], take_step, start)[1]

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
        trainable = [v.value for v in self._model.trainable_variables]
        total: list[tf.Tensor] = []
        loss = tf.constant(0.0)
        for n in range(self._micro_batches):
            with tf.control_dependencies(total):
                # Every n-th image: the same micro-batches whatever the number of replicas.
                every = slice(n, None, self._micro_batches)
                inputs, labels, row_weights = (tf.identity(x[every]) for x in (images, targets, weights))
            with tf.GradientTape() as tape:
                logits = self._model(tf.cast(inputs, tf.float32), training=True)
                part = tf.reduce_sum(self._losses(labels, logits, row_weights, scalars.focal_gamma)) / self.batch
                objective = part if self._scaling is None else part * self._scaling.read_value()[0]
            gradients = tape.gradient(objective, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else gradients
            loss += part
        return total, loss

    def _update(self, strategy: Any, gradient: tf.Tensor, row: tf.Tensor) -> None:
        """Update every replica's copy of the variables.  gradient: (P,) summed over replicas."""

        def update_copy(_: tf.Variable, variables: dict[str, Any], gradient: tf.Tensor, row: tf.Tensor) -> None:
            (m, v), trainable, scaling = variables["moments"], variables["trainable"], variables["scaling"]
            scalars, old_scaling = unpack_row(row), None if scaling is None else scaling.read_value()
            weights, moments = [x.read_value() for x in trainable], (m.read_value(), v.read_value())
            change, (new_m, new_v), new_scaling = adamw_step(
                self._layout, gradient, weights, moments, old_scaling, scalars
            )
            if scaling is not None:
                scaling.assign(new_scaling)
            m.assign(new_m)
            v.assign(new_v)
            for x, part in zip(trainable, tf.split(change, self._layout.sizes), strict=True):
                x.assign_sub(tf.reshape(part, x.shape))
            if variables["averaged"]:
                averages = variables["averages"]
                new_weights = self._averages_layout.flatten([x.read_value() for x in variables["averaged"]])
                averages.assign(update_average(averages.read_value(), new_weights, scalars))

        averaged = list(self._averaged_variables.values())
        variables = {"moments": self._moments, "averages": self._averages, "averaged": averaged}
        variables |= {"scaling": self._scaling, "trainable": [v.value for v in self._model.trainable_variables]}
        strategy.extended.update(self._moments[0], update_copy, (variables, gradient, row), group=True)
