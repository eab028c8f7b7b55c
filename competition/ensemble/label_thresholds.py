"""The thresholds of a multi-label competition: a row gets each label whose probability reaches the label's threshold.

A threshold of its own for every class overfits to rare classes, as offsets do (`decision`). So one common threshold is
fitted first, and each class's own threshold is pulled towards it, to n / (n + shrink_rows) of the way, where n is the
number of rows with the label.
"""

import numpy as np

from competition.ensemble.metrics import Metric
from competition.ensemble.mixing import FLOOR

COMMON = np.linspace(0.02, 0.98, 49)  # common thresholds tried
TRIED = 48  # thresholds of one class tried for a metric of rows


def fit_label_thresholds(
    probs: np.ndarray, labels: np.ndarray, metric: Metric, passes: int, shrink_rows: float
) -> np.ndarray:
    """(C,) float64 thresholds.  probs: (N, C).  labels: (N, C) bool.  metric: of multi-label decisions."""
    from scipy.special import expit, logit

    scores = [metric.evaluate(labels, probs >= threshold) for threshold in COMMON]
    # Among equals the threshold next to one half.
    best = np.flatnonzero(np.array(scores) == max(scores))
    common = float(COMMON[best[np.argmin(np.abs(COMMON[best] - 0.5))]])
    if metric.name == "multilabel_macro_f1":
        own = np.array([_best_f1_threshold(probs[:, c], labels[:, c], common) for c in range(probs.shape[1])])
    elif metric.name == "samples_f1":
        own = _coordinate_ascent(probs, labels, common, passes)
    else:
        own = np.full(probs.shape[1], common)
    positives = labels.sum(0)
    share = positives / (positives + shrink_rows) if shrink_rows else np.ones(len(own))
    start, end = logit(common), logit(np.clip(own, FLOOR, 1 - FLOOR))
    return np.asarray(expit(start + share * (end - start)))


def label_sets(probs: np.ndarray, thresholds: np.ndarray | float, at_least_one: bool) -> np.ndarray:
    """(N, C) bool: the labels whose probability is at least their threshold.

    at_least_one: a row without a label gets the one that comes closest to its threshold.
    """
    margin = probs - thresholds
    decided: np.ndarray = margin >= 0
    if at_least_one:
        empty = np.flatnonzero(~decided.any(1))
        decided[empty, margin[empty].argmax(1)] = True
    return decided


def _best_f1_threshold(probs: np.ndarray, labels: np.ndarray, default: float) -> float:
    """The threshold of the best F1 of one class, between two neighbouring probabilities; `default` without positives."""
    positives = int(labels.sum())
    if not positives:
        return default
    order = np.argsort(-probs, kind="stable")
    ranked = probs[order].astype(np.float64)
    scores = 2 * labels[order].cumsum() / (np.arange(1, len(probs) + 1) + positives)
    scores[:-1][ranked[1:] == ranked[:-1]] = -1  # equal probabilities are decided alike
    cut = int(np.argmax(scores))
    below = ranked[cut + 1] if cut + 1 < len(ranked) else 0.0
    return float((ranked[cut] + below) / 2)


def _coordinate_ascent(probs: np.ndarray, labels: np.ndarray, common: float, passes: int) -> np.ndarray:
    """(C,) thresholds for the mean F1 of the rows: each class in turn gets the best of TRIED thresholds.

    A change of one class changes a row's F1 through two counts only, so a trial costs N operations.
    """
    rows, classes = probs.shape
    thresholds = np.full(classes, common)
    decided = probs >= common
    hits, predicted = (decided & labels).sum(1), decided.sum(1)
    actual = labels.sum(1)

    for _ in range(passes):
        for c in range(classes):
            other_hits, others = hits - (decided[:, c] & labels[:, c]), predicted - decided[:, c]
            values = np.unique(probs[:, c].astype(np.float64))
            midpoints = (values[1:] + values[:-1]) / 2
            trials = np.r_[thresholds[c], midpoints[:: max(1, len(midpoints) // TRIED)]]  # ties keep the current one
            scores = []
            for threshold in trials:
                chosen = probs[:, c] >= threshold
                total = others + chosen + actual
                f1 = np.divide(2.0 * (other_hits + (chosen & labels[:, c])), total, out=np.zeros(rows), where=total > 0)
                scores.append(f1.mean())
            thresholds[c] = trials[int(np.argmax(scores))]
            decided[:, c] = probs[:, c] >= thresholds[c]
            hits, predicted = other_hits + (decided[:, c] & labels[:, c]), others + decided[:, c]
    return thresholds
