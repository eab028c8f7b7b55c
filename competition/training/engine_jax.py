"""The engine on JAX: one jitted step with donated state, data-parallel over all devices of all hosts.

The state is a few flat vectors, replicated on every device, because handing hundreds of arrays to eight devices takes longer
than many steps (docs/speed.md); `state` gives them the same names as on TensorFlow. Batches are sharded along their
first axis. XLA sees one global program (SPMD): sums, clipping and batch statistics are those of the whole batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from competition.config.params import Train
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
    random_variables,
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

AHEAD = 2  # batches transferred to the devices in advance, and steps in flight on them
WEIGHTS, AVERAGES = "weights", "averages"  # flat vectors of all float32 variables of the model, and of their averages
Arrays = dict[str, jax.Array]
Batch = tuple[jax.Array, ...]  # images, targets, weights
Values = list[jax.Array]  # of the variables of a model


class JaxEngine(Engine):
    """All state is in a dictionary of arrays on the devices. `Engine` describes the public methods."""

    def __init__(self, network: Callable[[], keras.Model], device: Device, compiled_in: CompiledIn) -> None:
        super().__init__(compiled_in)
        self._replicated = NamedSharding(device.strategy, PartitionSpec())
        self._batch_sharding = NamedSharding(device.strategy, PartitionSpec("batch"))
        self._model = network()
        variables = dict(saved_variables(self._model))
        self._random = {f"random/{n:04}": v for n, v in enumerate(random_variables(self._model))}
        names = {id(variable): name for name, variable in [*variables.items(), *self._random.items()]}
        self._trainable = [names[id(v)] for v in self._model.trainable_variables]
        self._non_trainable = [names[id(v)] for v in self._model.non_trainable_variables]
        # The trainable variables come first, in the same order as in the moments.
        others = [n for n in variables if n not in self._trainable]
        self._flat = [*self._trainable, *(n for n in others if variables[n].dtype == "float32")]
        self._apart = [n for n in others if n not in self._flat]  # variables of other types, without averages
        # Names of arrays that are the same in `_state` and in what `state` returns.
        self._unchanged = [*self._apart, *MOMENTS, *([LOSS_SCALE] if compiled_in.scale_loss else [])]
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        self._flat_layout = FlatVector(tuple(shapes[name] for name in self._flat))
        self._layout = FlatVector(tuple(shapes[name] for name in self._trainable), layer_groups(self._model))
        # Before the first step: the built weights, zero moments, averages equal to the weights.
        model = {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in variables.items()}
        moments = {name: np.zeros(sum(self._layout.sizes), np.float32) for name in MOMENTS}
        averages = {average_name(name): model[name] for name in self._flat if self.keeps_average}
        scale = {LOSS_SCALE: np.array(FIRST_LOSS_SCALE, np.float32)} if compiled_in.scale_loss else {}
        self._initial_state = {**model, **moments, **averages, **scale}
        self._state: Arrays = {}
        self.reset(0)
        replicated = self._replicated
        self._compiled_step = jax.jit(self._step, donate_argnums=0, out_shardings=(replicated, replicated))
        self._network = jax.jit(self._probabilities, out_shardings=replicated)
        self._stacked = jax.jit(lambda probs: jnp.stack(probs, axis=1), out_shardings=replicated)
        # Views -> the program that transforms a distributed batch by every view; V outputs.
        self._view_program = cache(lambda views: jax.jit(apply_views(views), out_shardings=self._batch_sharding))

    def reseed(self, seed: int, step: int) -> None:
        super().reseed(seed, step)
        for name, variable in self._random.items():
            self._state[name] = _put(np.asarray(variable.value), self._replicated)

    def distributed(self, batches: Any) -> Iterator[Batch]:
        queue: deque[Batch] = deque()
        for batch in batches.as_numpy_iterator():
            queue.append(jax.make_array_from_process_local_data(self._batch_sharding, batch))
            if len(queue) > AHEAD:
                yield queue.popleft()
        yield from queue

    def take_steps(
        self, batches: Iterator[Batch], rates: np.ndarray, first_step: int, train: Train, per_epoch: int
    ) -> float:
        step_losses: list[jax.Array] = []
        for row in step_table(rates, first_step, train, per_epoch, self._layout.groups):
            self._state, loss = self._compiled_step(self._state, next(batches), _put(row, self._replicated))
            step_losses.append(loss)
            if len(step_losses) > AHEAD:
                # Otherwise the host runs ahead and its batches fill the device memory.
                step_losses[-1 - AHEAD].block_until_ready()
        return float(np.mean([np.asarray(loss) for loss in step_losses], dtype=np.float64))

    def probabilities(self, batches: Iterator[np.ndarray], count: int, views: Sequence[View]) -> np.ndarray:
        model = self.prediction_state()

        def dispatch(images: np.ndarray) -> jax.Array:
            batch, each = _put(images, self._batch_sharding), list[jax.Array]()
            for group in view_groups(tuple(views), images):
                each += [self._network(model, view) for view in self._view_program(group)(batch)]
            probs = self._stacked(each)
            probs.copy_to_host_async()
            return probs

        return collect_probabilities(batches, count, dispatch)

    def prediction_state(self) -> Arrays:
        """The part of the state that prediction reads, with the averages as weights where they are kept."""
        weights = self._state[AVERAGES if self.keeps_average else WEIGHTS]
        return {WEIGHTS: weights, **{name: self._state[name] for name in [*self._apart, *self._random]}}

    def state(self) -> State:
        state = {name: np.array(value) for name, value in self._state.items()}
        named = {name: state[name] for name in self._unchanged}
        named |= dict(zip(self._flat, self._flat_layout.split(state[WEIGHTS]), strict=True))
        if self.keeps_average:
            averages = self._flat_layout.split(state[AVERAGES])
            named |= {average_name(n): value for n, value in zip(self._flat, averages, strict=True)}
        return named

    def load(self, state: State) -> None:
        check_state(self._initial_state, state)
        vectors = {WEIGHTS: self._flat}
        if self.keeps_average:
            vectors[AVERAGES] = [average_name(name) for name in self._flat]
        arrays = {name: state[name] for name in self._unchanged}
        for vector, names in vectors.items():
            arrays[vector] = np.concatenate([np.zeros(0, np.float32), *(state[name].ravel() for name in names)])
        random = {name: self._state[name] for name in self._random if name in self._state}
        self._state = {name: _put(value, self._replicated) for name, value in arrays.items()} | random

    def all_gather(self, number: int) -> list[int]:
        if jax.process_count() == 1:
            return [number]
        from jax.experimental.multihost_utils import process_allgather

        return [int(value) for value in process_allgather(np.array(number, np.int32))]

    def _step(self, state: Arrays, batch: Batch, row: jax.Array) -> tuple[Arrays, jax.Array]:
        """(state after one step, loss)."""
        scalars = unpack_row(row)
        images, targets, weights = batch
        batch = (*augmented(images, targets), weights)
        arguments, scaling = self._arguments(state), state.get(LOSS_SCALE)
        gradients, non_trainable, loss = self._gradients(arguments, batch, scalars, scaling)
        layout, (m, v) = self._layout, MOMENTS
        change, moments, scaling = adamw_step(
            layout, layout.flatten(gradients), arguments[0], (state[m], state[v]), scaling, scalars
        )
        others = dict(zip(self._non_trainable, non_trainable, strict=True))
        statistics = [others[name].reshape(-1) for name in self._flat[len(self._trainable) :]]
        weights = jnp.concatenate([state[WEIGHTS][: len(change)] - change, *statistics])
        new_state = {**state, WEIGHTS: weights, m: moments[0], v: moments[1]}
        new_state |= {name: others[name] for name in [*self._apart, *self._random] if name in others}
        if scaling is not None:
            new_state[LOSS_SCALE] = scaling
        if self.keeps_average:
            new_state[AVERAGES] = update_average(state[AVERAGES], weights, scalars)
        return new_state, loss

    def _gradients(
        self, arguments: tuple[Values, Values], batch: Batch, scalars: StepScalars, scaling: jax.Array | None
    ) -> tuple[Values, Values, jax.Array]:
        """(gradients, new values of the non-trainable variables, loss), summed over the micro-batches.

        arguments: see _arguments.  scaling: (2,), whose first value multiplies the gradients; None: they are not scaled.
        """
        (trainable, non_trainable), scale = arguments, 1.0 if scaling is None else scaling[0]

        def loss_of(
            trainable: Values, non_trainable: Values, batch: Batch
        ) -> tuple[jax.Array, tuple[Values, jax.Array]]:
            images, targets, weights = batch
            inputs = images.astype("float32")
            logits, non_trainable = self._model.stateless_call(trainable, non_trainable, inputs, training=True)
            loss = jnp.sum(self._losses(targets, logits, weights, scalars.focal_gamma)) / self.batch
            return loss * scale, (non_trainable, loss)

        gradient_of = jax.value_and_grad(loss_of, has_aux=True)

        def add(carry: Any, micro_batch: Batch) -> tuple[Any, None]:
            total, non_trainable, loss = carry
            (_, (non_trainable, part)), gradients = gradient_of(trainable, non_trainable, micro_batch)
            return ([a + b for a, b in zip(total, gradients, strict=True)], non_trainable, loss + part), None

        if self._micro_batches == 1:
            (_, (non_trainable, loss)), gradients = gradient_of(trainable, non_trainable, batch)
            return gradients, non_trainable, loss
        # Every n-th image: the same micro-batches whatever the number of devices, each within one device's shard.
        count = self._micro_batches
        micro_batches = tuple(jnp.moveaxis(x.reshape(-1, count, *x.shape[1:]), 1, 0) for x in batch)
        zeros = [jnp.zeros_like(x) for x in trainable]
        return jax.lax.scan(add, (zeros, non_trainable, jnp.zeros(())), micro_batches)[0]

    def _arguments(self, state: Arrays) -> tuple[Values, Values]:
        """(trainable, non-trainable) values in the order that `stateless_call` expects."""
        arrays = {**state, **dict(zip(self._flat, self._flat_layout.split(state[WEIGHTS]), strict=True))}
        return [arrays[name] for name in self._trainable], [arrays[name] for name in self._non_trainable]

    def _probabilities(self, model: Arrays, images: jax.Array) -> jax.Array:
        logits, _ = self._model.stateless_call(*self._arguments(model), images, training=False)
        return output_of_logits(logits, self._target)


def _put(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """The array on the devices, sharded or replicated."""
    if jax.process_count() == 1:
        return jax.device_put(value, sharding)
    # Every host has the whole batch and gives its own devices their part.
    return jax.make_array_from_callback(value.shape, sharding, lambda part: value[part])
