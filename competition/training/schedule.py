"""Learning-rate schedules. The compiled step takes the rate as an argument, so a schedule is just an array."""

import numpy as np


def warmup_cosine(peak: float, steps: int, warmup: float) -> np.ndarray:
    """Linear warm-up over the fraction `warmup` of the steps, then cosine decay to 0 (Loshchilov & Hutter 2017, SGDR).

    Returns (steps,) float32. The last rate is above 0, so every step has an effect.
    """
    warmup_steps = round(steps * warmup)
    rising = peak * np.arange(1, warmup_steps + 1) / max(warmup_steps, 1)
    decay_steps = steps - warmup_steps
    falling = peak * 0.5 * (1 + np.cos(np.pi * np.arange(1, decay_steps + 1) / (max(decay_steps, 1) + 1)))
    return np.concatenate([rising, falling]).astype(np.float32)
