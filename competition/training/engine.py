"""What both engines share: the interface, names of variables, random seeds, collecting probabilities. The step itself is in
engine_tensorflow.py and engine_jax.py.

An engine is one member's compiled training step. It is built once, then reset, trained and asked for probabilities fold
after fold. The step is our own and not a Keras optimizer, which clips gradients per replica before they are summed and
compiles learning rate and weight decay into the graph.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import keras
import numpy as np

from competition.config.params import Train
from competition.ensemble.metrics import TargetKind
from competition.training.backend import Tensor
from competition.training.optimizer import LOSSES

State = dict[str, np.ndarray]
View = Callable[[Tensor], Tensor]  # (B, H, W, 3) float -> the same shape and dtype
LOSS_SCALE = "loss_scale"  # (2,) see optimizer.next_loss_scale; only with CompiledIn.scale_loss
MOMENTS = ("adam/m", "adam/v")  # (P,) first and second moments of all trainable variables (optimizer.FlatVector)
# Images that are made by one program: 128 of 512 px are 0.4 GB under each view, and a network needs the memory, too.
VIEW_BYTES = 500_000_000
FLOAT_BYTES = 4  # of a transformed value, which was one byte


@dataclass(frozen=True)
class CompiledIn:
    """Options that are part of the compiled step: changing one needs a new engine."""

    batch: int  # images in a global training batch: a multiple of replicas x accumulate
    predict_batch: int  # images in a global prediction batch: a multiple of the replicas
    accumulate: int = 1  # micro-batches per batch
    keep_average: bool = False  # keep a moving average of the weights and predict with it
    target: TargetKind = "single"  # loss and output: softmax over classes | sigmoid of each label | the value itself
    scale_loss: bool = False  # dynamic loss scaling: gradients of float16 activations are else rounded to 0


class Engine(ABC):
    """Trains one model and predicts with it. State has the same names on every backend, so weights are portable."""

    _model: keras.Model
    _initial_state: State

    def __init__(self, compiled_in: CompiledIn) -> None:
        self.batch, self.predict_batch = compiled_in.batch, compiled_in.predict_batch
        self.keeps_average = compiled_in.keep_average
        self._backbone: keras.Model | None = None
        self._losses, self._target = LOSSES[compiled_in.target], compiled_in.target
        self._micro_batches = compiled_in.accumulate

    @property
    def model(self) -> keras.Model:
        """The network with the current weights: images (B, H, W, 3) of 0..255 -> logits (B, C), or values (B, 1)."""
        state = self.state()
        for name, variable in saved_variables(self._model):
            variable.assign(state[name])
        return self._model

    def reseed(self, seed: int, step: int) -> None:
        """Set the state of every random layer for global step `step`, because checkpoints do not hold it."""
        for layer, variable in enumerate(random_variables(self._model)):
            first = int(np.random.default_rng([seed, layer]).integers(0, 2**31))
            # Keras counts the draws in the second number.
            variable.assign(np.asarray([first, step * self._micro_batches], variable.dtype))

    @property
    def backbone(self) -> keras.Model:
        """`model` up to the input of its last layer. The same object each time, which Keras compiles once."""
        model = self.model  # its variables, which the backbone shares, get the current weights
        if self._backbone is None:
            self._backbone = keras.Model(model.inputs, model.get_layer("logits").input)
        return self._backbone

    @abstractmethod
    def distributed(self, batches: Any) -> Iterator[Any]:
        """An iterator of batches on the devices from a tf.data.Dataset of (images uint8, targets, weights)."""

    @abstractmethod
    def take_steps(
        self, batches: Iterator[Any], rates: np.ndarray, first_step: int, train: Train, per_epoch: int
    ) -> float:
        """Take one training step per learning rate in `rates`, from global step `first_step` on. Returns the mean loss.

        train: what `step_table` reads of it is not compiled in.  per_epoch: steps per epoch.
        """

    @abstractmethod
    def probabilities(self, batches: Iterator[np.ndarray], count: int, views: Sequence[View]) -> np.ndarray:
        """Predict the first `count` images of batches (B, H, W, 3) uint8 under every view; the others pad the last batch.

        Returns (count, V, C) float32 in their order; for a regression the values (count, V, 1). One small program makes all
        views of a batch, which then share the network, compiled once; the next batch is started before the results of one
        are fetched. Raises AssertionError if the batches hold fewer images.
        """

    @abstractmethod
    def state(self) -> State:
        """Everything a checkpoint needs: variables, optimizer moments, averages."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Replace the state. Raises ValueError unless names and shapes are exactly this engine's."""

    def reset(self, seed: int) -> None:
        """Restore the initial weights, clear the optimizer's moments, seed the random layers."""
        self.load(self._initial_state)
        self.reseed(seed, 0)

    def weights(self) -> State:
        """The variables that prediction needs: the model's, or their average where one is kept."""
        state = self.state()
        names = [name for name in state if name.startswith("model/")]
        return {name: state.get(average_name(name), state[name]) for name in names}

    def load_weights(self, weights: State) -> None:
        """Load the result of weights(), also as averages where they are kept, and clear the optimizer's moments."""
        averages = {average_name(name): value for name, value in weights.items()}
        kept = {name: value for name, value in averages.items() if name in self._initial_state}
        self.load({**self._initial_state, **weights, **kept})

    def all_gather(self, number: int) -> list[int]:
        """The `number` of every host, in the order of hosts. Waits for all hosts; one number on a single host."""
        return [number]


def apply_views(views: Sequence[View]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """A function from (B, H, W, 3) uint8 images to the float32 input of the model under each view."""
    return lambda images: tuple(view(keras.ops.cast(images, "float32")) for view in views)


def view_groups(views: tuple[View, ...], images: np.ndarray) -> list[tuple[View, ...]]:
    """The views in groups that one program makes of a batch (B, H, W, 3) uint8, at most VIEW_BYTES but at least one view each."""
    at_once = max(1, VIEW_BYTES // (FLOAT_BYTES * images.nbytes))
    return [views[first : first + at_once] for first in range(0, len(views), at_once)]


def output_of_logits(logits: Tensor, target: TargetKind) -> Tensor:
    """(B, C) logits -> probabilities of classes or of independent labels; the values (B, 1) of a regression stay."""
    if target == "regression":
        return logits
    return keras.ops.softmax(logits) if target == "single" else keras.ops.sigmoid(logits)


def random_variables(model: keras.Model) -> list[Any]:
    """The states of the seed generators of random layers."""
    return [v for v in model.non_trainable_variables if str(v.path).endswith("seed_generator_state")]


def saved_variables(model: keras.Model) -> list[tuple[str, Any]]:
    """(name, variable) of all weights and statistics of the model, without random states.

    A name holds the variable's position in the model. The numbers Keras gives to layers ("dense_7") depend on what was
    built before in this process and are left out.
    """
    random = {id(v) for v in random_variables(model)}
    variables = [v for v in model.variables if id(v) not in random]
    return [(f"model/{n:04}/{re.sub(r'_[0-9]+(?=/)', '', v.path)}", v) for n, v in enumerate(variables)]


def average_name(name: str) -> str:
    """The name of the moving average of the variable `name`."""
    return name.replace("model/", "average/", 1)


def layer_groups(model: keras.Model) -> tuple[tuple[float, bool], ...]:
    """(depth, is in layer "logits") of each of the T trainable variables.  depth: 0 = first layer with weights .. 1 = last."""
    layers = [str(v.path).rsplit("/", 1)[0] for v in model.trainable_variables]
    order = {layer: n for n, layer in enumerate(dict.fromkeys(layers))}
    return tuple((order[layer] / max(len(order) - 1, 1), layer.split("/")[0] == "logits") for layer in layers)


def check_state(expected: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless `state` has exactly the names and shapes of the expected arrays or variables."""
    if expected.keys() != state.keys():
        raise ValueError(f"weights do not belong to this model: {sorted(expected.keys() ^ state.keys())[:3]} differ")
    for name, value in expected.items():
        if value.shape != state[name].shape:
            raise ValueError(f"{name}: expected shape {value.shape}, received {state[name].shape}")


def collect_probabilities(
    batches: Iterator[np.ndarray], count: int, dispatch: Callable[[np.ndarray], Tensor]
) -> np.ndarray:
    """Predict every batch; the results of the first `count` images, (count, V, C) float32, without those of the padding.

    dispatch: images (B, H, W, 3) -> probabilities (B, V, C) that a device may still be computing.
    count: at least 1; AssertionError if the batches hold fewer images.
    Each batch is dispatched before the one before it is fetched, so the device never waits for the host.
    """
    collected, done = np.zeros(0, np.float32), 0
    for result, _ in pairwise(chain(map(dispatch, batches), [None])):  # pairs are made one item ahead
        probs = np.asarray(result)[: count - done]  # waits for them
        if not done:
            collected = np.zeros((count, *probs.shape[1:]), np.float32)
        collected[done : done + len(probs)] = probs
        done += len(probs)
    if done < count:
        raise AssertionError(f"{count - done} of {count} rows got no prediction")
    return collected
