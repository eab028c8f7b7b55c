"""Temperature scaling: one number per member that makes its probabilities as sure as they deserve to be.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017: p^(1/T), made to sum to 1. T > 1 for a member that
is too sure. The order of classes in a row never changes; how much the row weighs in a blend does.

Temperatures come from a geometric grid of 3 % steps. That is finer than the error of a temperature fitted on a few
thousand rows, and fits on overlapping rows then share their work (`outputs.MemberOutput`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from competition.ensemble.mixing import FLOOR

CALIBRATIONS = ("none", "temperature")  # the simplest first
COLDEST, HOTTEST = 0.1, 10.0
STEP_RATIO = 1.03
LAST_STEP = 77  # 1.03^77 = 9.74
PACES = (12, 3, 1)  # grid steps between the points that are tried, from coarse to fine

Losses = Callable[[Sequence[int]], np.ndarray]  # S grid steps -> (S,) mean log loss


def temperature_at(step: int) -> float:
    """Step 0 is temperature 1, exactly."""
    return float(STEP_RATIO**step)


def apply_temperature(probs: np.ndarray, temperature: float) -> np.ndarray:
    """(..., C) -> (..., C) float32. Temperature 1 returns the probabilities untouched."""
    if temperature == 1.0:
        return np.asarray(probs, np.float32)
    # log(p) is left unclipped towards 0 by FLOOR alone, so classes of probability 0 stay behind all others.
    logs = floored_logs(probs)
    logs /= np.float32(temperature)
    logs -= logs.max(-1, keepdims=True)
    hot = np.exp(logs, out=logs)
    hot /= hot.sum(-1, keepdims=True)
    return hot


def floored_logs(probs: np.ndarray) -> np.ndarray:
    """(...) -> (...) float32, a new array: log(max(p, FLOOR))."""
    logs = np.maximum(np.asarray(probs, np.float32), np.float32(FLOOR))
    return np.log(logs, out=logs)


def log_norms(logs: np.ndarray, temperature: float) -> np.ndarray:
    """(n, C) float32 logarithms -> (n,) float32: the log of the sum over classes of p^(1/T)."""
    top = logs.max(1) / np.float32(temperature)
    hot = logs / np.float32(temperature)
    hot -= top[:, None]
    return top + np.log(np.exp(hot, out=hot).sum(1))


def best_step(losses: Losses) -> int:
    """The grid step of least log loss. The loss is convex in 1 / T, so a search from coarse to fine finds it."""
    known: dict[int, float] = {}
    best = 0
    for pace, reach in zip(PACES, (2 * LAST_STEP, *PACES[:-1]), strict=True):
        around = range(best - reach // pace * pace, best + reach + 1, pace)
        steps = [step for step in around if abs(step) <= LAST_STEP and step not in known]
        known |= dict(zip(steps, losses(steps).tolist(), strict=True))
        best = min(known, key=lambda step: (known[step], abs(step)))
    return best


def fit_temperature(probs: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of least log loss, from the grid.  probs: (N, C).  labels: (N,) int."""
    logs = floored_logs(probs)
    own = logs[np.arange(len(labels)), labels].astype(np.float64)

    def losses(steps: Sequence[int]) -> np.ndarray:
        return np.array([(log_norms(logs, t) - own / t).mean() for t in map(temperature_at, steps)])

    return temperature_at(best_step(losses))
