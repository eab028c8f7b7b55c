"""Weighted means of members or views: arithmetic ("mean"), geometric, or of ranks.

probs (M, N, C) -> to_mixing_space -> (M, N, C) -> weighted_sum -> (N, C) -> to_probabilities -> (N, C)
"""

import numpy as np

from competition.config.errors import UserError

MIXINGS = ("mean", "geometric", "rank")
FLOOR = 1e-7  # the smallest probability whose logarithm is taken; float16 rounds smaller ones to 0


def to_mixing_space(probs: np.ndarray, mixing: str) -> np.ndarray:
    """Convert (..., N, C) probabilities to float32 values whose weighted sum is taken: themselves, logs or ranks."""
    if mixing == "mean":
        return np.asarray(probs, np.float32)
    if mixing == "geometric":
        return np.log(np.maximum(np.asarray(probs, np.float32), FLOOR))
    if mixing == "rank":
        return _ranks(np.asarray(probs))
    raise UserError(f"mixing '{mixing}' is not known; expected one of {', '.join(MIXINGS)}")


def to_probabilities(mixed: np.ndarray, mixing: str) -> np.ndarray:
    """Convert (N, C) weighted sums to float32 probabilities. Ranks are returned unchanged; their rows do not sum to 1."""
    if mixing == "rank":
        return mixed.astype(np.float32)
    if mixing == "geometric":
        mixed = np.exp(mixed - mixed.max(-1, keepdims=True))
    return (mixed / mixed.sum(-1, keepdims=True)).astype(np.float32)


def weighted_sum(parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(M, N, C), (M,) -> (N, C) float32. Zero-weight members are not read, so they may hold NaN."""
    used = np.flatnonzero(weights)
    total = np.zeros(parts.shape[1:], np.float32)
    for m in used:
        total += np.float32(weights[m]) * parts[m]
    return total


def mix(probs: np.ndarray, weights: np.ndarray, mixing: str) -> np.ndarray:
    """Weighted mean.  probs: (M, N, C).  weights: (M,).  Returns (N, C) float32."""
    return to_probabilities(weighted_sum(to_mixing_space(probs, mixing), weights), mixing)


def _ranks(probs: np.ndarray) -> np.ndarray:
    """Each column's mean rank among the N rows, in (0, 1]: independent of a member's scale, for AUC."""
    from scipy.stats import rankdata

    return (rankdata(probs, method="average", axis=-2) / probs.shape[-2]).astype(np.float32)
