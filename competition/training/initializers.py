"""Initial weights drawn by NumPy, because Keras draws different ones on each backend and a member must start alike on all."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

INITIALIZERS = {  # name of a variable -> attributes of its layer that may hold its initializer
    "kernel": ("kernel_initializer", "depthwise_initializer"),
    "depthwise_kernel": ("depthwise_initializer",),
    "pointwise_kernel": ("pointwise_initializer",),
}
TRUNCATED_NORMAL_STD = 0.87962566103423978  # of a unit normal truncated at two


def draw_initial_weights(layers: Iterable[Any], seed: int) -> None:
    """Draw every kernel with a variance-scaling initializer (Glorot, He, LeCun) again, from the same distribution."""
    for position, layer in enumerate(layers):
        for variable in layer.trainable_variables:
            initializers = [getattr(layer, name, None) for name in INITIALIZERS.get(variable.name, ())]
            scaling = next((i for i in initializers if isinstance(i, keras.initializers.VarianceScaling)), None)
            if scaling is not None:
                variable.assign(_draw(scaling, tuple(variable.shape), np.random.default_rng([seed, position])))


def _draw(scaling: Any, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Values of a variance-scaling initializer (Glorot & Bengio 2010, He et al. 2015), with fans as Keras counts them."""
    field = int(np.prod(shape[:-2]))
    fans: dict[str, float] = {"fan_in": shape[-2] * field, "fan_out": shape[-1] * field}
    fans["fan_avg"] = (fans["fan_in"] + fans["fan_out"]) / 2
    deviation = (scaling.scale / max(1.0, fans[scaling.mode])) ** 0.5
    if scaling.distribution == "uniform":
        return random.uniform(-(3**0.5) * deviation, 3**0.5 * deviation, shape).astype(np.float32)
    values = random.standard_normal(shape)
    if scaling.distribution == "truncated_normal":
        deviation /= TRUNCATED_NORMAL_STD
        while (outside := np.abs(values) > 2).any():
            values[outside] = random.standard_normal(int(outside.sum()))
    return (values * deviation).astype(np.float32)
