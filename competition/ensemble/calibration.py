"""Temperature scaling: one parameter that calibrates the confidence of a member's views before they are compared.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017: p^(1/T), rescaled to sum 1. T > 1 for an overconfident
member. Temperatures come from a geometric grid of 3 % steps. That is finer than the error of a temperature fitted on a few
thousand rows, and fits on overlapping rows then share their work (`policy.ViewCache`).
"""

from collections.abc import Callable, Sequence

import numpy as np

STEP_RATIO = 1.03  # of the grid; step 0 is temperature 1, exactly
LAST_STEP = 77  # 1.03^77 = 9.74
STRIDES = (12, 3, 1)  # grid steps between the evaluated points, from coarse to fine


def best_step(losses: Callable[[Sequence[int]], np.ndarray]) -> int:
    """The grid step of least log loss, by a coarse-to-fine search; the loss is convex in 1 / T.

    losses: S grid steps -> (S,) mean log loss.
    """
    loss_at: dict[int, float] = {}
    best = 0
    for stride, radius in zip(STRIDES, (2 * LAST_STEP, *STRIDES[:-1]), strict=True):
        neighbours = range(best - radius // stride * stride, best + radius + 1, stride)
        steps = [step for step in neighbours if abs(step) <= LAST_STEP and step not in loss_at]
        loss_at |= dict(zip(steps, losses(steps).tolist(), strict=True))
        best = min(loss_at, key=lambda step: (loss_at[step], abs(step)))
    return best


def log_norms(logs: np.ndarray, temperature: float) -> np.ndarray:
    """(n, C) float32 logarithms -> (n,) float32: the log of the sum over classes of p^(1/T)."""
    top = logs.max(1) / np.float32(temperature)
    scaled = logs / np.float32(temperature)
    scaled -= top[:, None]
    return top + np.log(np.exp(scaled, out=scaled).sum(1))
