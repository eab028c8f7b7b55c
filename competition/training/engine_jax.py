"""The engine on JAX: one jitted step with donated state, data-parallel over all devices of all hosts.

The state is one dict of arrays with the same names as on TensorFlow, replicated on every device. Batches are sharded
along their first axis. XLA sees one global program (SPMD): sums, clipping and batch statistics are those of the whole batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from competition.config.errors import UserError
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

AHEAD = 2  # batches transferred to the devices in advance, and steps in flight on them
Arrays = dict[str, Any]  # name -> jax.Array


class JaxEngine:
    """Implements `Engine`."""

    def __init__(
        self, build: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device, compiled_in: CompiledIn
    ) -> None:
        if compiled_in.use_fit:
            raise UserError(
                "train.loop is fit, but Keras fit on JAX hides the state between steps and does not prefetch batches for "
                "several devices; set train.loop: auto"
            )
        self.batch, self.predict_batch = batch, predict_batch
        self.uses_fit, self.keeps_average = False, compiled_in.keep_average
        self._losses, self._target = LOSSES[compiled_in.target], compiled_in.target
        self._micro_batches = compiled_in.accumulate
        self._replicated = NamedSharding(device.strategy, PartitionSpec())
        self._batch_sharding = NamedSharding(device.strategy, PartitionSpec("batch"))
        self._model = build()
        self._variables = dict(saved_variables(self._model))
        names = {id(variable): name for name, variable in self._variables.items()}
        random = [v for v in self._model.non_trainable_variables if is_random(v)]
        names |= {id(v): f"random/{n:04}" for n, v in enumerate(random)}
        self._trainable = [names[id(v)] for v in self._model.trainable_variables]
        self._non_trainable = [names[id(v)] for v in self._model.non_trainable_variables]
        self._moments = moment_names(len(self._trainable))
        self._averages = {name: average_name(name) for name in self._variables if self.keeps_average}
        self._random = {names[id(v)]: np.dtype(v.dtype) for v in random}
        self._depths, self._is_head = layer_depths(self._model)
        self._initial_state = self._initial()
        self._state: Arrays = {}
        self.reset(0)
        replicated = self._replicated
        self._compiled_step = jax.jit(self._step, donate_argnums=0, out_shardings=(replicated, replicated))
        self._network = jax.jit(self._probabilities, out_shardings=replicated)
        self._view_programs: dict[View, Any] = {}

    @property
    def model(self) -> keras.Model:
        """The Keras model with the current weights."""
        for name, variable in self._variables.items():
            variable.assign(_fetch(self._state[name]))
        return self._model

    def reset(self, seed: int) -> None:
        self.load(self._initial_state)
        self.reseed(seed, 0)

    def reseed(self, seed: int, step: int) -> None:
        for layer, (name, dtype) in enumerate(self._random.items()):
            state = np.asarray(seed_state(seed, layer, step * self._micro_batches), dtype)
            self._state[name] = _put(state, self._replicated)

    def distributed(self, batches: Any) -> Iterator[Any]:
        queue: deque[tuple[Any, ...]] = deque()
        for batch in batches.as_numpy_iterator():
            queue.append(jax.make_array_from_process_local_data(self._batch_sharding, batch))
            if len(queue) > AHEAD:
                yield queue.popleft()
        yield from queue

    def train(self, batches: Iterator[Any], rates: np.ndarray, step: int, values: StepValues) -> float:
        step_losses: list[Any] = []
        for row in step_table(rates, step, values, self._depths, self._is_head):
            self._state, loss = self._compiled_step(self._state, next(batches), _put(row, self._replicated))
            step_losses.append(loss)
            if len(step_losses) > AHEAD:
                # Otherwise the host runs ahead and its batches fill the device memory.
                step_losses[-1 - AHEAD].block_until_ready()
        return float(np.mean([_fetch(loss) for loss in step_losses], dtype=np.float64))

    def probabilities(
        self, batches: Iterator[tuple[np.ndarray, np.ndarray]], rows: np.ndarray, views: Sequence[View]
    ) -> np.ndarray:
        model = {name: self._state[self._averages.get(name, name)] for name in [*self._variables, *self._random]}
        return collect_probabilities(batches, rows, lambda images: self._predict_views(views, model, images))

    def state(self) -> State:
        return {name: _fetch(value) for name, value in self._state.items() if name not in self._random}

    def load(self, state: State) -> None:
        check_state({name: value.shape for name, value in self._initial_state.items()}, state)
        random = {name: self._state[name] for name in self._random if name in self._state}
        self._state = {name: _put(value, self._replicated) for name, value in state.items()} | random

    def weights(self) -> State:
        return weights_of(self.state())

    def load_weights(self, weights: State) -> None:
        self.load(with_weights(self._initial_state, weights))

    def all_gather(self, number: int) -> list[int]:
        if jax.process_count() == 1:
            return [number]
        from jax.experimental.multihost_utils import process_allgather

        return [int(value) for value in process_allgather(np.array(number, np.int32))]

    def _initial(self) -> State:
        """The state before the first step: the built weights, zero moments, averages equal to the weights."""
        model = {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in self._variables.items()}
        pairs = zip(self._moments, self._trainable, strict=True)
        moments = {moment: np.zeros_like(model[name]) for pair, name in pairs for moment in pair}
        return {**model, **moments, **{average: model[name] for name, average in self._averages.items()}}

    def _step(self, state: Arrays, batch: tuple[Any, ...], row: Any) -> tuple[Arrays, Any]:
        """(state after one step, loss)."""
        scalars = unpack_row(row)
        images, targets, weights = batch
        batch = (*augmented(images, targets), weights)
        gradients, non_trainable, loss = self._gradients(state, batch, scalars)
        new_state = state | dict(zip(self._non_trainable, non_trainable, strict=True))
        clipped, rates = clip_gradients(gradients, scalars), variable_rates(scalars)
        for name, (m, v), gradient, rate in zip(self._trainable, self._moments, clipped, rates, strict=True):
            updated = adamw(state[name], gradient, state[m], state[v], rate, scalars)
            new_state[name], new_state[m], new_state[v] = updated
        for name, average in self._averages.items():
            new_state[average] = update_average(state[average], new_state[name], scalars)
        return new_state, loss

    def _gradients(
        self, state: Arrays, batch: tuple[Any, ...], scalars: StepScalars
    ) -> tuple[list[Any], list[Any], Any]:
        """(gradients, new values of the non-trainable variables, loss), summed over the micro-batches."""

        def loss_of(trainable: list[Any], non_trainable: list[Any], batch: tuple[Any, ...]) -> tuple[Any, list[Any]]:
            images, targets, weights = batch
            inputs = images.astype("float32")
            logits, non_trainable = self._model.stateless_call(trainable, non_trainable, inputs, training=True)
            return jnp.sum(self._losses(targets, logits, weights, scalars.focal_gamma)) / self.batch, non_trainable

        gradient_of = jax.value_and_grad(loss_of, has_aux=True)

        def add(carry: Any, micro_batch: tuple[Any, ...]) -> tuple[Any, None]:
            total, non_trainable, loss = carry
            (part, non_trainable), gradients = gradient_of(trainable, non_trainable, micro_batch)
            return ([a + b for a, b in zip(total, gradients, strict=True)], non_trainable, loss + part), None

        trainable, non_trainable = self._arguments(state)
        if self._micro_batches == 1:
            (loss, non_trainable), gradients = gradient_of(trainable, non_trainable, batch)
            return gradients, non_trainable, loss
        # Every n-th image: the same micro-batches whatever the number of devices, each within one device's shard.
        count = self._micro_batches
        micro_batches = tuple(jnp.moveaxis(x.reshape(-1, count, *x.shape[1:]), 1, 0) for x in batch)
        zeros = [jnp.zeros_like(x) for x in trainable]
        return jax.lax.scan(add, (zeros, non_trainable, jnp.zeros(())), micro_batches)[0]

    def _arguments(self, arrays: Arrays) -> tuple[list[Any], list[Any]]:
        """(trainable, non-trainable) values in the order that `stateless_call` expects."""
        return [arrays[name] for name in self._trainable], [arrays[name] for name in self._non_trainable]

    def _predict_views(self, views: Sequence[View], model: Arrays, images: np.ndarray) -> np.ndarray:
        """(B, V, C) probabilities of (B, H, W, 3) uint8 images."""
        distributed = _put(images, self._batch_sharding)
        for view in views:
            if view not in self._view_programs:
                self._view_programs[view] = jax.jit(apply_view(view), out_shardings=self._batch_sharding)
        probs = [self._network(model, self._view_programs[view](distributed)) for view in views]
        return np.stack([_fetch(view_probs) for view_probs in probs], axis=1)

    def _probabilities(self, model: Arrays, images: Any) -> Any:
        logits, _ = self._model.stateless_call(*self._arguments(model), images, training=False)
        return jax.nn.softmax(logits) if self._target == "single" else output_of_logits(logits, self._target)


def _put(value: np.ndarray, sharding: NamedSharding) -> Any:
    """The array on the devices, sharded or replicated."""
    if jax.process_count() == 1:
        return jax.device_put(value, sharding)
    # Every host has the whole batch and gives its own devices their part.
    return jax.make_array_from_callback(value.shape, sharding, lambda part: value[part])


def _fetch(value: Any) -> np.ndarray:
    """A replicated array, from a device of this host."""
    return np.array(value.addressable_data(0))
