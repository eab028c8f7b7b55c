"""Weighted means of members or views: arithmetic ("mean"), geometric, or of ranks.

probs (M, N, C) -> to_mixing_space -> (M, N, C) -> weighted_sum -> (N, C) -> to_probabilities -> (N, C)

Columns that are independent of each other, the labels of a multi-label competition or the value of a regression, have
no common sum: their arithmetic mean is "average", and "log_odds" is what "geometric" is for classes.
"""

import numpy as np

from competition.config.errors import UserError

MIXINGS = ("mean", "geometric", "rank")
FLOOR = 1e-7  # the smallest probability whose logarithm is taken; float16 rounds smaller ones to 0


def to_mixing_space(probs: np.ndarray, mixing: str) -> np.ndarray:
    """Convert (..., N, C) probabilities to float32 values whose weighted sum is taken: themselves, logs or ranks."""
    if mixing in ("mean", "average"):
        return np.asarray(probs, np.float32)
    if mixing == "log_odds":
        return log_odds(probs)
    if mixing == "geometric":
        return floored_logs(probs)
    if (
        mixing == "rank"
    ):  # each column's mean rank among the N rows, in (0, 1]: independent of a member's scale, for AUC
        import pandas as pd  # loaded already in every stage, while scipy.stats takes 0.4 s

        columns = np.moveaxis(np.asarray(probs), -2, 0)
        ranks = pd.DataFrame(columns.reshape(len(columns), -1)).rank(method="average").to_numpy().reshape(columns.shape)
        return np.moveaxis(ranks / len(columns), 0, -2).astype(np.float32)
    raise UserError(f"mixing '{mixing}' is not known; expected one of {', '.join(MIXINGS)}")


def to_probabilities(mixed: np.ndarray, mixing: str) -> np.ndarray:
    """Convert (N, C) weighted sums to float32 probabilities. Ranks are returned unchanged; their rows do not sum to 1."""
    if mixing in ("rank", "average"):
        return mixed.astype(np.float32)
    if mixing == "log_odds":
        return from_log_odds(mixed)
    if mixing == "geometric":
        mixed = np.exp(mixed - mixed.max(-1, keepdims=True))
    return (mixed / mixed.sum(-1, keepdims=True)).astype(np.float32)


def floored_logs(probs: np.ndarray) -> np.ndarray:
    """(...) -> (...) float32, a new array: log(max(p, FLOOR))."""
    logs = np.maximum(np.asarray(probs, np.float32), np.float32(FLOOR))
    return np.log(logs, out=logs)


def log_odds(probs: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) of (...) probabilities, each by itself, as float32; p is kept FLOOR away from 0 and 1."""
    clipped = np.clip(np.asarray(probs, np.float32), np.float32(FLOOR), np.float32(1 - FLOOR))
    return np.log(clipped) - np.log1p(-clipped)


def from_log_odds(values: np.ndarray) -> np.ndarray:
    """The inverse of `log_odds`, float32."""
    from scipy.special import expit

    return np.asarray(expit(values), np.float32)


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
