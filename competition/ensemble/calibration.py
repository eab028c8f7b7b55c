"""Temperature scaling: one parameter per member that calibrates its confidence.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017: p^(1/T), rescaled to sum 1. T > 1 for an overconfident
member. The order of classes in a row does not change, but the influence of the row in a blend does.

Temperatures come from a geometric grid of 3 % steps. That is finer than the error of a temperature fitted on a few
thousand rows, and fits on overlapping rows then share their work (`outputs.MemberOutput`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from competition.ensemble.mixing import floored_logs, from_log_odds, log_odds
from competition.ensemble.target_metrics import label_log_likelihoods

CALIBRATIONS = ("none", "temperature")  # the simplest first
COLDEST, HOTTEST = 0.1, 10.0
STEP_RATIO = 1.03
LAST_STEP = 77  # 1.03^77 = 9.74
STRIDES = (12, 3, 1)  # grid steps between the evaluated points, from coarse to fine

Losses = Callable[[Sequence[int]], np.ndarray]  # S grid steps -> (S,) mean log loss


def temperature_at(step: int) -> float:
    """Step 0 is temperature 1, exactly."""
    return float(STEP_RATIO**step)


def apply_temperature(probs: np.ndarray, temperature: float, independent: bool = False) -> np.ndarray:
    """(..., C) -> (..., C) float32. Temperature 1 returns the probabilities unchanged.

    independent: each probability stands for itself (multi-label): p^(1/T) / (p^(1/T) + (1 - p)^(1/T)).
    """
    if temperature == 1.0:
        return np.asarray(probs, np.float32)
    if independent:
        return from_log_odds(log_odds(probs) / np.float32(temperature))
    # FLOOR is below every other probability, so classes of probability 0 stay last.
    logs = floored_logs(probs)
    logs /= np.float32(temperature)
    logs -= logs.max(-1, keepdims=True)
    probs = np.exp(logs, out=logs)
    probs /= probs.sum(-1, keepdims=True)
    return probs


def log_norms(logs: np.ndarray, temperature: float) -> np.ndarray:
    """(n, C) float32 logarithms -> (n,) float32: the log of the sum over classes of p^(1/T)."""
    top = logs.max(1) / np.float32(temperature)
    scaled = logs / np.float32(temperature)
    scaled -= top[:, None]
    return top + np.log(np.exp(scaled, out=scaled).sum(1))


def best_step(losses: Losses) -> int:
    """The grid step of least log loss, by a coarse-to-fine search; the loss is convex in 1 / T."""
    loss_at: dict[int, float] = {}
    best = 0
    for stride, radius in zip(STRIDES, (2 * LAST_STEP, *STRIDES[:-1]), strict=True):
        neighbours = range(best - radius // stride * stride, best + radius + 1, stride)
        steps = [step for step in neighbours if abs(step) <= LAST_STEP and step not in loss_at]
        loss_at |= dict(zip(steps, losses(steps).tolist(), strict=True))
        best = min(loss_at, key=lambda step: (loss_at[step], abs(step)))
    return best


def label_losses(probs: np.ndarray, labels: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """(S, N) binary cross-entropy of each row, the mean over its classes, at each grid step.  labels: (N, C) bool."""
    odds = log_odds(probs)
    calibrated = (from_log_odds(odds / np.float32(temperature_at(step))) for step in steps)
    return np.array([-label_log_likelihoods(labels, one).mean(1) for one in calibrated])


def fit_temperature(probs: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of least log loss, from the grid.  probs: (N, C).  labels: (N,) int, or (N, C) bool."""
    if labels.ndim == 2:
        return temperature_at(best_step(lambda steps: label_losses(probs, labels, steps).mean(1)))
    logs = floored_logs(probs)
    true_logs = logs[np.arange(len(labels)), labels].astype(np.float64)

    def losses(steps: Sequence[int]) -> np.ndarray:
        return np.array([(log_norms(logs, t) - true_logs / t).mean() for t in map(temperature_at, steps)])

    return temperature_at(best_step(losses))
