"""Greedy selection with replacement (Caruana et al., "Ensemble Selection from Libraries of Models", ICML 2004).

Members are added one at a time, each time the one that helps the mean most; its weight is the share of picks.
"""

import numpy as np

from competition.ensemble.metrics import Metric, count_labels
from competition.ensemble.mixing import to_probabilities


def greedy_picks(parts: np.ndarray, labels: np.ndarray, metric: Metric, rounds: int, mixing: str) -> list[int]:
    """Add, at most `rounds` times, the member that improves the mean most; return the shortest best prefix.

    parts: (M, N, C) float32.  labels: (N,) int, or as the metric's target says.  mixing: "mean" or "average".
    Ties go to the member with the highest likelihood of the true classes (if targets are classes), then to the earliest,
    so the result does not depend on a seed.
    """
    rows = np.arange(len(labels))
    # (M, N), of the true classes
    true_values = parts[:, rows, labels] if metric.target == "single" else np.zeros(parts.shape[:2], np.float32)
    if metric.name == "log_loss":  # only the true class counts: (M, N, 1) values instead of (M, N, C)
        parts, labels, mixing = true_values[:, :, None], np.zeros_like(labels), "average"
    if metric.from_counts is not None:  # where all members name one class, so does every mean
        first = parts[0].argmax(1)
        varies = (parts.argmax(2) != first).any(0)
        agreed = count_labels(labels[~varies], first[~varies], parts.shape[2])
        parts, labels = parts[:, varies], labels[varies]
    total, true_total = np.zeros(parts.shape[1:], np.float32), np.zeros(true_values.shape[1], np.float32)

    picks: list[int] = []
    best, best_length = -np.inf, 0
    for count in range(1, rounds + 1):
        sums = (total + part for part in parts)  # with one member more
        if metric.from_counts is not None:  # `to_probabilities` keeps each row's argmax, so the sums suffice
            counts = (count_labels(labels, each.argmax(1), parts.shape[2]) + agreed for each in sums)
            scores = np.array([metric.evaluate_counts(each) for each in counts])
        else:
            scores = np.array([metric.evaluate(labels, to_probabilities(each / count, mixing)) for each in sums])
        tied = np.flatnonzero(scores == scores.max())
        likelihoods = [np.log(np.maximum(true_total + true_values[member], 1e-7)).mean() for member in tied]
        pick = int(tied[np.argmax(likelihoods)])
        picks.append(pick)
        total += parts[pick]
        true_total += true_values[pick]
        if scores[pick] > best:
            best, best_length = scores[pick], count
    return picks[:best_length]
