"""The engine on JAX: one jitted step with donated state, data-parallel over all devices of all hosts.

The state is one dict of arrays, by the same names as on TensorFlow, on every device whole; a batch is cut along its
first axis. XLA sees one global program (SPMD): sums, clipping, batch statistics are those of the whole batch.
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

AHEAD = 2  # batches on their way to the devices, and steps in flight on them
Arrays = dict[str, Any]  # name -> jax.Array


class JaxEngine:
    def __init__(
        self, build: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device, compiled_in: CompiledIn
    ) -> None:
        if compiled_in.fit:
            raise UserError(
                "train.loop is fit, but Keras fit on JAX keeps the state to itself between steps and feeds several "
                "devices without looking ahead; set train.loop: auto"
            )
        self.batch, self.predict_batch = batch, predict_batch
        self.fits, self.averaged = False, compiled_in.averaged
        self._pieces = compiled_in.accumulate
        self._whole = NamedSharding(device.strategy, PartitionSpec())
        self._cut = NamedSharding(device.strategy, PartitionSpec("batch"))
        self._model = build()
        self._variables = dict(saved_variables(self._model))
        names = {id(variable): name for name, variable in self._variables.items()}
        random = [v for v in self._model.non_trainable_variables if is_random(v)]
        names |= {id(v): f"random/{n:04}" for n, v in enumerate(random)}
        self._trainable = [names[id(v)] for v in self._model.trainable_variables]
        self._other = [names[id(v)] for v in self._model.non_trainable_variables]
        self._moments = moment_names(len(self._trainable))
        self._averages = {name: average_name(name) for name in self._variables if self.averaged}
        self._random = {names[id(v)]: np.dtype(v.dtype) for v in random}
        self._depths, self._head = layer_depths(self._model)
        self._start = self._initial()
        self._state: Arrays = {}
        self.reset(0)
        self._run = jax.jit(self._step, donate_argnums=0, out_shardings=(self._whole, self._whole))
        self._ask = jax.jit(self._probabilities, out_shardings=self._whole)
        self._seen: dict[View, Any] = {}

    @property
    def model(self) -> keras.Model:
        """The Keras model, with the weights of now."""
        for name, variable in self._variables.items():
            variable.assign(_fetched(self._state[name]))
        return self._model

    def reset(self, seed: int) -> None:
        self.load(self._start)
        self.reseed(seed, 0)

    def reseed(self, seed: int, step: int) -> None:
        for place, (name, dtype) in enumerate(self._random.items()):
            self._state[name] = self._put(np.asarray(seed_state(seed, place, step * self._pieces), dtype), self._whole)

    def distributed(self, batches: Any) -> Iterator[Any]:
        ready: deque[tuple[Any, ...]] = deque()
        for batch in batches.as_numpy_iterator():
            ready.append(tuple(self._put(part, self._cut) for part in batch))
            if len(ready) > AHEAD:
                yield ready.popleft()
        yield from ready

    def train(self, batches: Iterator[Any], rates: np.ndarray, step: int, values: StepValues) -> float:
        found: list[Any] = []
        for row in step_table(rates, step, values, self._depths, self._head):
            self._state, loss = self._run(self._state, next(batches), self._put(row, self._whole))
            found.append(loss)
            if len(found) > AHEAD:
                found[-1 - AHEAD].block_until_ready()  # else the host runs ahead and its batches fill the memory
        return float(np.mean([_fetched(loss) for loss in found], dtype=np.float64))

    def probabilities(
        self, batches: Iterator[tuple[np.ndarray, np.ndarray]], rows: np.ndarray, views: Sequence[View]
    ) -> np.ndarray:
        model = {name: self._state[self._averages.get(name, name)] for name in [*self._variables, *self._random]}
        return collect_probabilities(
            batches, rows, lambda images: self._under(views, model, self._put(images, self._cut))
        )

    def state(self) -> State:
        return {name: _fetched(value) for name, value in self._state.items() if name not in self._random}

    def load(self, state: State) -> None:
        check_state({name: value.shape for name, value in self._start.items()}, state)
        random = {name: self._state[name] for name in self._random if name in self._state}
        self._state = {name: self._put(value, self._whole) for name, value in state.items()} | random

    def weights(self) -> State:
        return weights_of(self.state())

    def load_weights(self, weights: State) -> None:
        self.load(with_weights(self._start, weights))

    def all_gather(self, number: int) -> list[int]:
        if jax.process_count() == 1:
            return [number]
        from jax.experimental.multihost_utils import process_allgather

        return [int(said) for said in process_allgather(np.array(number, np.int32))]

    def _initial(self) -> State:
        model = {name: np.array(keras.ops.convert_to_numpy(variable)) for name, variable in self._variables.items()}
        empty = zip(self._moments, self._trainable, strict=True)
        moments = {moment: np.zeros_like(model[name]) for pair, name in empty for moment in pair}
        return {**model, **moments, **{average: model[name] for name, average in self._averages.items()}}

    def _step(self, state: Arrays, batch: tuple[Any, ...], row: Any) -> tuple[Arrays, Any]:
        now = unpack_row(row)
        gradients, other, loss = self._gradients(state, batch, now)
        after = state | dict(zip(self._other, other, strict=True))
        named = zip(self._trainable, self._moments, clip_gradients(gradients, now), variable_rates(now), strict=True)
        for name, (m, v), gradient, rate in named:
            after[name], after[m], after[v] = adamw(state[name], gradient, state[m], state[v], rate, now)
        for name, average in self._averages.items():
            after[average] = update_average(state[average], after[name], now)
        return after, loss

    def _gradients(self, state: Arrays, batch: tuple[Any, ...], now: StepScalars) -> tuple[list[Any], list[Any], Any]:
        """(gradients, non-trainable variables afterwards, loss), summed over the pieces of the batch."""

        def loss_of(trainable: list[Any], other: list[Any], piece: tuple[Any, ...]) -> tuple[Any, list[Any]]:
            images, targets, weights = piece
            logits, other = self._model.stateless_call(trainable, other, images.astype("float32"), training=True)
            return jnp.sum(losses(targets, logits, weights, now.focal_gamma)) / self.batch, other

        def add(so_far: Any, piece: tuple[Any, ...]) -> tuple[Any, None]:
            gradients, other, loss = so_far
            (part, other), more = jax.value_and_grad(loss_of, has_aux=True)(trainable, other, piece)
            return ([a + b for a, b in zip(gradients, more, strict=True)], other, loss + part), None

        trainable, other = [state[name] for name in self._trainable], [state[name] for name in self._other]
        if self._pieces == 1:
            (loss, other), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, other, batch)
            return gradients, other, loss
        # Every n-th image: the same pieces whatever the number of devices, and each within one device's share.
        pieces = tuple(jnp.moveaxis(x.reshape(-1, self._pieces, *x.shape[1:]), 1, 0) for x in batch)
        empty = [jnp.zeros_like(x) for x in trainable]
        return jax.lax.scan(add, (empty, other, jnp.zeros(())), pieces)[0]

    def _under(self, views: Sequence[View], model: Arrays, images: Any) -> np.ndarray:
        """(B, V, C)"""
        for view in views:
            if view not in self._seen:
                self._seen[view] = jax.jit(apply_view(view), out_shardings=self._cut)
        found = [self._ask(model, self._seen[view](images)) for view in views]
        return np.stack([_fetched(probs) for probs in found], axis=1)

    def _probabilities(self, model: Arrays, images: Any) -> Any:
        trainable, other = [model[name] for name in self._trainable], [model[name] for name in self._other]
        logits, _ = self._model.stateless_call(trainable, other, images, training=False)
        return jax.nn.softmax(logits)

    def _put(self, value: np.ndarray, how: NamedSharding) -> Any:
        if jax.process_count() == 1:
            return jax.device_put(value, how)
        # Every host has the whole batch and gives its own devices their part.
        return jax.make_array_from_callback(value.shape, how, lambda part: value[part])


def _fetched(value: Any) -> np.ndarray:
    """A replicated array, from a device of this host."""
    return np.array(value.addressable_data(0))
