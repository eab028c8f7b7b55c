"""Temperature scaling: one number per member that makes its probabilities as sure as they deserve to be.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017: p^(1/T), made to sum to 1. T > 1 for a member that
is too sure. The order of classes in a row never changes; how much the row weighs in a blend does.
"""

import numpy as np

from competition.ensemble.mixing import FLOOR

COLDEST, HOTTEST = 0.1, 10.0


def apply_temperature(probs: np.ndarray, temperature: float) -> np.ndarray:
    """(..., C) -> (..., C) float32. Temperature 1 returns the probabilities untouched."""
    if temperature == 1.0:
        return np.asarray(probs, np.float32)
    # log(p) is left unclipped towards 0 by FLOOR alone, so classes of probability 0 stay behind all others.
    logs = np.log(np.maximum(np.asarray(probs, np.float32), FLOOR)) / np.float32(temperature)
    hot = np.exp(logs - logs.max(-1, keepdims=True))
    return hot / hot.sum(-1, keepdims=True)


def fit_temperature(probs: np.ndarray, labels: np.ndarray, steps: int = 25) -> float:
    """The T of least log loss.  probs: (N, C).  labels: (N,) int.

    The loss is convex in b = 1 / T, so Newton's method finds it; b stays within [1/HOTTEST, 1/COLDEST].
    """
    logs = np.log(np.maximum(np.asarray(probs, np.float32), FLOOR))
    logs -= logs.max(1, keepdims=True)
    own = logs[np.arange(len(labels)), labels].astype(np.float64)
    b = 1.0
    for _ in range(steps):
        weights = np.exp(logs * np.float32(b))
        total = weights.sum(1)
        mean = (weights * logs).sum(1) / total
        spread = (weights * logs * logs).sum(1) / total - mean**2
        slope = (mean - own).mean(dtype=np.float64)  # derivative of the loss
        step = slope / max(spread.mean(dtype=np.float64), 1e-12)
        new = float(np.clip(b - step, max(b / 3, 1 / HOTTEST), min(b * 3, 1 / COLDEST)))
        if abs(new - b) < 1e-6:
            break
        b = new
    return 1.0 / b
