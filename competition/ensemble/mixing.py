"""Weighted means of members or views, and the mean over the fold models of a member.

mean: of probabilities of classes that exclude each other, whose rows sum to 1. average: of columns that are independent of
each other, the labels of a multi-label competition or the value of a regression. geometric and log_odds: of the logarithms
of both kinds of probabilities.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from competition.ensemble.metrics import TargetKind
from competition.ensemble.stored_predictions import ViewPredictions

FLOOR = 1e-7  # the smallest probability whose logarithm is taken; float16 rounds smaller ones to 0
MEAN_OF: dict[TargetKind, str] = {"single": "mean", "multi": "average", "regression": "average"}


def mix(parts: Iterable[np.ndarray], weights: Iterable[float], mixing: str) -> np.ndarray:
    """Weighted mean, (N, C) float32.

    parts: (N, C) each, read one after the other; those of weight 0 may hold NaN.  weights: sum to 1, except for stacking.
    """
    total: np.ndarray | None = None
    for part, weight in zip(parts, weights, strict=True):
        if weight:
            weighted = np.float32(weight) * to_mixing_space(part, mixing)
            total = weighted if total is None else np.add(total, weighted, out=total)
    assert total is not None, "expected a weight above 0"
    return to_probabilities(total, mixing)


def mean_over_folds(parts: Sequence[ViewPredictions]) -> ViewPredictions:
    """Average the test predictions of one member's fold models, joined by id."""
    ids = parts[0].ids
    total = np.zeros(parts[0].probs.shape, np.float32)
    for part in parts:
        total += part.at(ids).probs
    mean = (total / len(parts)).astype(parts[0].probs.dtype)
    return replace(parts[0], probs=mean)


def to_mixing_space(probs: np.ndarray, mixing: str) -> np.ndarray:
    """Convert (..., N, C) probabilities to the float32 values whose weighted sum is taken."""
    if mixing == "log_odds":
        return log_odds(probs)
    return floored_logs(probs) if mixing == "geometric" else np.asarray(probs, np.float32)


def to_probabilities(mixed: np.ndarray, mixing: str) -> np.ndarray:
    """Convert (N, C) weighted sums to float32 probabilities, or values of a regression."""
    if mixing == "average":
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
