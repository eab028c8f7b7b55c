"""The learning rate of every step, as plain numbers: the compiled step takes it as an argument, so no value is baked in."""

import numpy as np


def warmup_cosine(peak: float, steps: int, warmup: float) -> np.ndarray:
    """Linear rise over the share `warmup` of the steps, then half a cosine down to 0 (Loshchilov & Hutter 2017, SGDR).

    Returns (steps,) float32. The last rate is above 0, so no step is wasted.
    """
    rise = round(steps * warmup)
    up = peak * np.arange(1, rise + 1) / max(rise, 1)
    rest = max(steps - rise, 1)
    down = peak * 0.5 * (1 + np.cos(np.pi * np.arange(1, steps - rise + 1) / (rest + 1)))
    return np.concatenate([up, down]).astype(np.float32)
