"""What both engines have in common: what they can do, how their state is named, how probabilities are collected.

An engine is one member's compiled step: built once, then reset, trained and asked for probabilities fold after fold.
The step is our own and not an optimizer of Keras, which clips gradients per replica before they are summed and bakes
learning rate and weight decay into the graph.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np

from competition.training.optimizer import StepValues

State = dict[str, np.ndarray]
View = Callable[[Any], Any]  # (B, H, W, 3) float -> the same
__all__ = ["CompiledIn", "Engine", "State", "StepValues"]


@dataclass(frozen=True)
class CompiledIn:
    """What cannot change without compiling again."""

    accumulate: int  # pieces a batch is cut into; each divides it on every replica
    averaged: bool  # keep a moving average of the weights, and use it in place of them
    fit: bool  # Keras fit drives the steps


class Engine(Protocol):
    """model: images 0..255 -> logits. State has the same names on every backend, so weights move between them."""

    batch: int  # images in a global training batch
    predict_batch: int
    fits: bool  # run() goes through Keras fit, and train() is not for it
    averaged: bool

    @property
    def model(self) -> keras.Model: ...

    def reset(self, seed: int) -> None:
        """Initial weights, empty moments; random layers start from `seed`."""

    def reseed(self, seed: int, step: int) -> None:
        """Give every random layer the state it has at global step `step`, because checkpoints do not hold it."""

    def distributed(self, batches: Any) -> Iterator[Any]:
        """An iterator of batches on the devices from a tf.data.Dataset of (images uint8, targets, weights)."""

    def train(self, batches: Iterator[Any], rates: np.ndarray, step: int, values: StepValues) -> float:
        """Take len(rates) steps from global step number `step` on. Returns the mean loss."""

    def probabilities(
        self, batches: Iterator[tuple[np.ndarray, np.ndarray]], rows: np.ndarray, views: Sequence[View]
    ) -> np.ndarray:
        """(len(rows), V, C) float32, in the order of `rows`, whatever order and filling the batches have.

        A view is a small program of its own; all of them pass the network that was compiled once.
        """

    def state(self) -> State:
        """Everything a checkpoint needs."""

    def load(self, state: State) -> None:
        """Raises ValueError unless names and shapes are exactly this engine's: nothing is skipped silently."""

    def weights(self) -> State:
        """What prediction needs: the model's variables, or their average where one is kept."""

    def load_weights(self, weights: State) -> None: ...

    def all_gather(self, number: int) -> list[int]:
        """What each host says; waits until all have said it. One number where there is one host."""


def apply_view(view: View) -> View:
    """(B, H, W, 3) uint8 images -> what the model is asked about under this view."""
    return lambda images: view(keras.ops.cast(images, "float32"))


def is_random(variable: Any) -> bool:
    return str(variable.path).endswith("seed_generator_state")


def saved_variables(model: keras.Model) -> list[tuple[str, Any]]:
    """(name, variable) of all that is learned or counted.

    The numbers Keras gives to layers ("dense_7") depend on what was built before in this process and are left out; the
    place in the model says which one it is.
    """
    kept = [v for v in model.variables if not is_random(v)]
    return [(f"model/{n:04}/{re.sub(r'_[0-9]+(?=/)', '', v.path)}", v) for n, v in enumerate(kept)]


def moment_names(count: int) -> list[tuple[str, str]]:
    return [(f"adam/{n:04}/m", f"adam/{n:04}/v") for n in range(count)]


def average_name(name: str) -> str:
    return name.replace("model/", "average/", 1)


def layer_depths(model: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    """depths: (T,) from 0 at the first layer with weights to 1 at the last.  head: (T,) bool, is in layer "logits"."""
    layers = [str(v.path).rsplit("/", 1)[0] for v in model.trainable_variables]
    order = {layer: n for n, layer in enumerate(dict.fromkeys(layers))}
    depths = np.asarray([order[layer] for layer in layers]) / max(len(order) - 1, 1)
    return depths, np.asarray([layer.split("/")[0] == "logits" for layer in layers])


def seed_state(seed: int, place: int, used: int) -> list[int]:
    """What a random layer's generator holds after `used` draws: Keras counts them in the second number."""
    return [int(np.random.default_rng([seed, place]).integers(0, 2**31)), used]


def check_state(own: dict[str, tuple[int, ...]], state: State) -> None:
    if own.keys() != state.keys():
        raise ValueError(f"weights do not belong to this model: {sorted(own.keys() ^ state.keys())[:3]} differ")
    for name, shape in own.items():
        if shape != state[name].shape:
            raise ValueError(f"{name}: shape {state[name].shape} was found, {shape} was expected")


def weights_of(state: State) -> State:
    """The model's variables, each as its average where the state has one."""
    model = {name: value for name, value in state.items() if name.startswith("model/")}
    return {name: state.get(average_name(name), value) for name, value in model.items()}


def with_weights(start: State, weights: State) -> State:
    averages = {average_name(name): value for name, value in weights.items()}
    return {**start, **weights, **{name: value for name, value in averages.items() if name in start}}


def collect_probabilities(
    batches: Iterator[tuple[np.ndarray, np.ndarray]], rows: np.ndarray, ask: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """(len(rows), V, C) in the order of `rows` from ask(images (B, H, W, 3)) -> (B, V, C); fillers are dropped."""
    place = {int(row): n for n, row in enumerate(rows)}
    found: np.ndarray | None = None
    seen = np.zeros(len(rows), bool)
    for numbers, images in batches:
        probs = ask(images)
        found = np.zeros((len(rows), *probs.shape[1:]), np.float32) if found is None else found
        real = numbers >= 0
        at = [place[int(row)] for row in numbers[real]]
        found[at], seen[at] = probs[real], True
    if found is None or not seen.all():
        raise AssertionError(f"{int((~seen).sum())} of {len(rows)} rows got no prediction")
    return found
