"""One member's compiled step on TensorFlow: built once, then reset, trained and asked for probabilities fold after fold.

The step is our own and not Keras `fit`, for three reasons that were measured: `fit` needs several times longer before its first step,
it clips gradients per replica before they are summed, and it bakes learning rate and weight decay into the graph.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from competition.training.device import Device

State = dict[str, np.ndarray]
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7  # AdamW as Keras has it


@dataclass(frozen=True)
class StepValues:
    """What may change between folds and trials without compiling again."""

    weight_decay: float
    clip_norm: float  # 0 = no limit


class Engine:
    """model: images 0..255 -> logits. All state lives in TensorFlow variables under the device's strategy."""

    def __init__(self, build: Callable[[], keras.Model], batch: int, predict_batch: int, device: Device) -> None:
        """batch, predict_batch: images in a global batch; multiples of the number of replicas."""
        self.batch, self.predict_batch = batch, predict_batch
        self._device, self._strategy = device, device.strategy
        with self._strategy.scope():
            self.model = build()
            self._moments = [
                (tf.Variable(tf.zeros_like(v), trainable=False), tf.Variable(tf.zeros_like(v), trainable=False))
                for v in (w.value for w in self.model.trainable_variables)
            ]
        self._start = {name: _numpy(v) for name, v in self._variables()}
        self._run = tf.function(self._steps)
        self._ask = tf.function(self._probabilities, autograph=False)
        self._views: tuple[Callable[[Any], Any], ...] = ()

    def reset(self, seed: int) -> None:
        """Initial weights, empty moments; random layers start from `seed`."""
        self.load(self._start)
        self.reseed(seed, 0)

    def reseed(self, seed: int, epoch: int) -> None:
        """Give every random layer a state that follows from (seed, epoch, its place), because Keras does not save it."""
        for place, (_, variable) in enumerate(self._seed_states()):
            drawn = np.random.default_rng([seed, epoch, place]).integers(0, 2**31)
            variable.assign(np.asarray([drawn, 0], variable.dtype.as_numpy_dtype))

    def train(self, batches: Iterator[Any], rates: np.ndarray, step: int, values: StepValues) -> float:
        """Take len(rates) steps from global step number `step` on. Returns the mean loss."""
        clip = values.clip_norm or float("inf")
        constants = [tf.constant(x, tf.float32) for x in (values.weight_decay, clip)]
        total = self._run(batches, tf.constant(rates, tf.float32), tf.constant(step, tf.float32), *constants)
        return float(total) / len(rates)

    def probabilities(
        self, batches: Iterator[tuple[np.ndarray, np.ndarray]], rows: np.ndarray, views: Sequence[Callable[[Any], Any]]
    ) -> np.ndarray:
        """(len(rows), V, C) float32, in the order of `rows`, whatever order and filling the batches have."""
        if tuple(views) != self._views:
            self._views, self._ask = tuple(views), tf.function(self._probabilities, autograph=False)
        place = {int(row): n for n, row in enumerate(rows)}
        found: np.ndarray | None = None
        seen = np.zeros(len(rows), bool)
        for numbers, images in batches:
            probs = self._ask(self._shared_out(images)).numpy()
            found = np.zeros((len(rows), *probs.shape[1:]), np.float32) if found is None else found
            real = numbers >= 0
            at = [place[int(row)] for row in numbers[real]]
            found[at], seen[at] = probs[real], True
        if found is None or not seen.all():
            raise AssertionError(f"{int((~seen).sum())} of {len(rows)} rows got no prediction")
        return found

    def distributed(self, batches: tf.data.Dataset) -> Iterator[Any]:
        if self._device.replicas == 1 and self._device.kind != "tpu":
            return iter(batches)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return iter(self._strategy.experimental_distribute_dataset(batches.with_options(options)))

    def state(self) -> State:
        return {name: _numpy(variable) for name, variable in self._variables()}

    def load(self, state: State) -> None:
        """Raises ValueError unless names and shapes are exactly this engine's: nothing is skipped silently."""
        own = dict(self._variables())
        if own.keys() != state.keys():
            raise ValueError(f"weights do not belong to this model: {sorted(own.keys() ^ state.keys())[:3]} differ")
        for name, variable in own.items():
            if tuple(variable.shape) != state[name].shape:
                raise ValueError(f"{name}: shape {state[name].shape} was found, {tuple(variable.shape)} was expected")
            variable.assign(state[name])

    def weights(self) -> State:
        """What prediction needs: the model's variables, without optimizer and random states."""
        return {name: value for name, value in self.state().items() if name.startswith("model/")}

    def load_weights(self, weights: State) -> None:
        self.load({**self._start, **weights})

    def _variables(self) -> list[tuple[str, Any]]:
        random = {id(v) for _, v in self._seed_states()}
        model = [(f"model/{n:04}/{v.path}", v.value) for n, v in enumerate(self.model.variables) if id(v.value) not in random]
        moments = [(f"adam/{n:04}/{k}", v) for n, pair in enumerate(self._moments) for k, v in zip("mv", pair, strict=True)]
        return model + moments

    def _seed_states(self) -> list[tuple[str, Any]]:
        return [(v.path, v.value) for v in self.model.non_trainable_variables if v.path.endswith("seed_generator_state")]

    def _steps(self, batches: Any, rates: tf.Tensor, first: tf.Tensor, decay: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for n in tf.range(tf.shape(rates)[0]):
            number = first + tf.cast(n, tf.float32) + 1
            losses = self._strategy.run(self._replica_step, (next(batches), rates[n], number, decay, clip))
            total += self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total

    def _replica_step(self, batch: Any, rate: tf.Tensor, number: tf.Tensor, decay: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
        images, targets, weights = batch
        trainable = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.model(tf.cast(images, tf.float32), training=True)
            each = weights * tf.nn.softmax_cross_entropy_with_logits(targets, logits)
            loss = tf.nn.compute_average_loss(each, global_batch_size=self.batch)
        gradients = tape.gradient(loss, [v.value for v in trainable])
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        norm = tf.linalg.global_norm(gradients)
        scale = tf.minimum(1.0, clip / tf.maximum(norm, 1e-12))  # after the sum: the norm of the whole gradient
        gradients = [g * scale for g in gradients]
        context.merge_call(self._update, (gradients, rate, number, decay))
        return loss

    def _update(self, strategy: Any, gradients: list[Any], rate: Any, number: Any, decay: Any) -> None:
        """AdamW (Loshchilov & Hutter 2019) on every replica's own copy; matrices decay, biases and norms do not."""
        for variable, gradient, (m, v) in zip(self.model.trainable_variables, gradients, self._moments, strict=True):
            shrink = len(variable.shape) > 1

            def update(x: Any, g: Any, m: Any, v: Any, rate: Any, number: Any, decay: Any, shrink: bool = shrink) -> None:
                m.assign_add((g - m) * (1 - BETA_1))
                v.assign_add((tf.square(g) - v) * (1 - BETA_2))
                step = rate * tf.sqrt(1 - tf.pow(BETA_2, number)) / (1 - tf.pow(BETA_1, number))
                x.assign_sub(step * m / (tf.sqrt(v) + EPSILON) + (rate * decay * x if shrink else 0.0))

            strategy.extended.update(variable.value, update, (gradient, m, v, rate, number, decay), group=True)

    def _shared_out(self, images: np.ndarray) -> Any:
        share = len(images) // self._device.replicas
        if self._device.replicas == 1:
            return tf.constant(images)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(images[context.replica_id_in_sync_group * share :][:share])
        )

    def _probabilities(self, images: Any) -> tf.Tensor:
        def ask(local: tf.Tensor) -> tf.Tensor:
            pixels = tf.cast(local, tf.float32)
            return tf.stack([tf.nn.softmax(self.model(view(pixels), training=False)) for view in self._views], axis=1)

        return self._strategy.gather(self._strategy.run(ask, (images,)), axis=0)


def _numpy(variable: Any) -> np.ndarray:
    value: np.ndarray = variable.numpy()
    return value
