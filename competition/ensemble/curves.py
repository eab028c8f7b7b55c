"""ROC AUC and average precision of one column of scores, for many sets of row weights at once."""

import numpy as np


def auc(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Share of (positive, negative) pairs that the scores order correctly; ties count one half.

    positive: (N,) bool.  scores: (N,).  weights: (R, N).  Returns (R,); NaN where one of the two classes has no weight.
    """
    positives, negatives = _by_score(positive, scores, weights)
    negatives_below = negatives.cumsum(1) - negatives
    return (positives * (negatives_below + 0.5 * negatives)).sum(1) / (positives.sum(1) * negatives.sum(1))


def average_precision(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sum over the distinct scores of (rise of the recall) * precision, as scikit-learn's average_precision_score.

    positive: (N,) bool.  scores: (N,).  weights: (R, N).  Returns (R,); 0 without positive rows, as scikit-learn.
    """
    positives, negatives = (counts[:, ::-1] for counts in _by_score(positive, scores, weights))  # highest first
    hits = positives.cumsum(1)
    selected = hits + negatives.cumsum(1)
    precision = np.divide(hits, selected, out=np.zeros_like(hits), where=selected > 0)
    total = positives.sum(1)
    rises = np.divide(positives, total[:, None], out=np.zeros_like(positives), where=total[:, None] > 0)
    return np.asarray((rises * precision).sum(1))


def _by_score(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R, S) weights of the positive and of the negative rows at each of the S distinct scores, the lowest first."""
    order = np.argsort(scores, kind="stable")
    weights, positive, scores = weights[:, order], positive[order], scores[order]
    starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
    positives = np.add.reduceat(weights * positive, starts, axis=1, dtype=np.float64)
    negatives = np.add.reduceat(weights * ~positive, starts, axis=1, dtype=np.float64)
    return positives, negatives
