"""Initial weights drawn by NumPy: Keras draws others on every backend, and a member must begin the same on all."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

KERNELS = {  # variable -> the layer's attribute that says how it is drawn
    "kernel": ("kernel_initializer", "depthwise_initializer"),
    "depthwise_kernel": ("depthwise_initializer",),
    "pointwise_kernel": ("pointwise_initializer",),
}
CUT_NORMAL = 0.87962566103423978  # standard deviation of a unit normal cut at two


def draw_initial_weights(layers: Iterable[Any], seed: int) -> None:
    """Give every kernel that is drawn by variance scaling (Glorot, He, LeCun) new values of the same distribution."""
    for place, layer in enumerate(layers):
        for variable in layer.trainable_variables:
            how = [getattr(layer, name, None) for name in KERNELS.get(variable.name, ())]
            scaling = next((each for each in how if isinstance(each, keras.initializers.VarianceScaling)), None)
            if scaling is not None:
                variable.assign(_drawn(scaling, tuple(variable.shape), np.random.default_rng([seed, place])))


def _drawn(how: Any, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Glorot & Bengio 2010, He et al. 2015; fans as Keras counts them."""
    field = int(np.prod(shape[:-2]))
    fans: dict[str, float] = {"fan_in": shape[-2] * field, "fan_out": shape[-1] * field}
    fans["fan_avg"] = (fans["fan_in"] + fans["fan_out"]) / 2
    deviation = (how.scale / max(1.0, fans[how.mode])) ** 0.5
    if how.distribution == "uniform":
        return random.uniform(-(3**0.5) * deviation, 3**0.5 * deviation, shape).astype(np.float32)
    drawn = random.standard_normal(shape)
    if how.distribution == "truncated_normal":
        deviation /= CUT_NORMAL
        while (far := np.abs(drawn) > 2).any():
            drawn[far] = random.standard_normal(int(far.sum()))
    return (drawn * deviation).astype(np.float32)
