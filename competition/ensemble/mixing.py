"""What is averaged when members are mixed: probabilities, their logarithms, or their ranks.

probs (M, N, C) -> prepare -> parts (M, N, C) -> weighted sum over M -> finish -> (N, C)
"""

import numpy as np

from competition.config.errors import UserError

MIXINGS = ("mean", "geometric", "rank")
FLOOR = 1e-7  # the smallest probability whose logarithm is taken; float16 rounds smaller ones to 0


def to_mixing_space(probs: np.ndarray, mixing: str) -> np.ndarray:
    """(..., N, C) probabilities -> (..., N, C) float32, ready for a weighted sum."""
    if mixing == "mean":
        return np.asarray(probs, np.float32)
    if mixing == "geometric":
        return np.log(np.maximum(np.asarray(probs, np.float32), FLOOR))
    if mixing == "rank":
        return _ranks(np.asarray(probs))
    raise UserError(f"mixing '{mixing}' is not known; expected one of {', '.join(MIXINGS)}")


def to_probabilities(mixed: np.ndarray, mixing: str) -> np.ndarray:
    """(N, C) weighted sums -> (N, C) float32. Rows sum to 1, except for ranks: a column's order is their meaning."""
    if mixing == "rank":
        return mixed.astype(np.float32)
    if mixing == "geometric":
        mixed = np.exp(mixed - mixed.max(-1, keepdims=True))
    return (mixed / mixed.sum(-1, keepdims=True)).astype(np.float32)


def weighted_sum(parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(M, N, C), (M,) -> (N, C) float32. A member without weight is not read, so its NaNs do not matter."""
    used = np.flatnonzero(weights)
    total = np.zeros(parts.shape[1:], np.float32)
    for m in used:
        total += np.float32(weights[m]) * parts[m]
    return total


def mix(probs: np.ndarray, weights: np.ndarray, mixing: str) -> np.ndarray:
    """(M, N, C), (M,) -> (N, C) float32."""
    return to_probabilities(weighted_sum(to_mixing_space(probs, mixing), weights), mixing)


def _ranks(probs: np.ndarray) -> np.ndarray:
    """Each column's mean rank among the N rows, in (0, 1]; for metrics of order (AUC), blind to each member's scale."""
    from scipy.stats import rankdata

    return (rankdata(probs, method="average", axis=-2) / probs.shape[-2]).astype(np.float32)
