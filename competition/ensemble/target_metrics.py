"""Metrics of multi-label and regression competitions, each a function of (targets, output, weights).

Multi-label: targets (N, C) bool; the output is (N, C) bool decisions or (N, C) float probabilities, each in 0..1.
Regression: targets (N,) float; the output is (N, 1) float values.
weights: (R, N) row weights of R resamples, or None.  Returns (R,) scores, or a scalar; greater is better.
"""

import numpy as np

from competition.config.errors import UserError


class UndefinedScore(UserError):
    """The metric has no value on these rows, whatever is predicted."""


def multilabel_macro_f1(targets: np.ndarray, decided: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Mean over the classes of the F1 of each column; a class without positives and predictions counts as 0.

    Equals f1_score(average="macro", zero_division=0).
    """
    cells = (targets & decided, targets, decided)
    hits, actual, predicted = (
        c.sum(0, np.float64) if weights is None else weights @ c.astype(np.float64) for c in cells
    )
    total = actual + predicted
    return np.asarray((2.0 * hits / np.where(total > 0, total, 1.0)).mean(-1))


def f1_of_rows(targets: np.ndarray, decided: np.ndarray) -> np.ndarray:
    """(N,) F1 of each row's labels; a row without labels and predictions counts as 0.

    The mean equals f1_score(average="samples", zero_division=0).
    """
    total = targets.sum(1, dtype=np.float64) + decided.sum(1)
    return np.asarray(2.0 * (targets & decided).sum(1) / np.where(total > 0, total, 1.0))


def mean_average_precision(targets: np.ndarray, probs: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Mean over the classes of the average precision; a class without positives counts as 0, as in scikit-learn.

    Equals average_precision_score(average="macro").
    """
    of_rows = np.ones((1, len(targets))) if weights is None else weights
    scores = [average_precision(targets[:, c], probs[:, c], of_rows) for c in range(targets.shape[1])]
    mean = np.mean(scores, axis=0)
    return np.asarray(mean[0]) if weights is None else mean


def mean_column_auc(targets: np.ndarray, probs: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Mean over the classes of ROC AUC; ties count one half.  targets: (N, C) bool, or (N,) int classes.

    A class without a positive or without a negative row has no AUC and is left out of the mean.
    Equals roc_auc_score(average="macro") over the other classes.
    """
    targets = targets if targets.ndim == 2 else targets[:, None] == np.arange(probs.shape[1])
    positives = np.count_nonzero(targets, axis=0)
    columns = np.flatnonzero((positives > 0) & (positives < len(targets)))
    if not len(columns):
        raise UndefinedScore("mean_column_auc needs a class with a positive and a negative row, found none")
    of_rows = np.ones((1, len(targets))) if weights is None else weights
    with np.errstate(invalid="ignore"):  # a resample may have lost a class: 0 / 0
        aucs = np.array([auc(targets[:, c], probs[:, c], of_rows) for c in columns])
    defined = np.isfinite(aucs)
    mean = np.where(defined, aucs, 0).sum(0) / np.maximum(defined.sum(0), 1)
    return np.asarray(mean[0]) if weights is None else mean


def mean_log_likelihoods(targets: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """(N,) float64: mean over the labels of log p for a label that the row has, log (1 - p) for one that it has not."""
    eps = np.finfo(np.float64 if probs.dtype == np.float64 else np.float32).eps
    own = np.where(targets, probs.astype(np.float64), 1.0 - probs.astype(np.float64))
    return np.asarray(np.log(np.clip(own, eps, 1.0 - eps)).mean(1))


def weighted_mean(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Mean of (N,) values, or (R,) means for the weights (R, N) of R resamples."""
    return np.asarray(values.mean()) if weights is None else (weights @ values) / weights.sum(1)


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
