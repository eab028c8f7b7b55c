"""Greedy selection with replacement (Caruana et al., "Ensemble Selection from Libraries of Models", ICML 2004).

Members are added one at a time, each time the one that helps the mean most; its weight is the share of picks.
For a metric of labels the search is exact and fast, because it reads only the classes that can win (`shortlist`).
"""

from collections.abc import Callable

import numpy as np

from competition.ensemble.metrics import Metric
from competition.ensemble.mixing import to_probabilities
from competition.ensemble.shortlist import Shortlist, shortlist

Allowed = Callable[[list[int]], np.ndarray]  # picks so far -> (M,) bool: members that may be picked next
ENTRIES_AT_ONCE = 50_000  # members x listed classes of a block of rows, which then stays in the processor's cache


def greedy_picks(
    parts: np.ndarray,
    labels: np.ndarray,
    metric: Metric,
    rounds: int,
    mixing: str = "mean",
    allowed: Allowed | None = None,
) -> list[int]:
    """Add, at most `rounds` times, the member that improves the mean most; return the shortest best prefix.

    parts: (M, N, C) float32 in the space of `mixing` (`to_mixing_space`).  labels: (N,) int.
    allowed: limits the picks, for example by cost.
    Ties go to the member with the highest likelihood of the true classes (if targets are classes), then to the earliest,
    so the result does not depend on a seed.
    """
    if metric.from_counts is not None:  # `to_probabilities` keeps each row's argmax, so the sums suffice
        return shortlist_picks(shortlist_of(parts, labels, mixing), metric, rounds, allowed)
    rows, total = np.arange(len(labels)), np.zeros(parts.shape[1:], np.float32)
    # (M, N)
    true_values = parts[:, rows, labels] if metric.target == "single" else np.zeros(parts.shape[:2])

    def trial_scores(count: int) -> np.ndarray:
        if metric.name == "log_loss" and mixing == "mean":
            # Only the probability of the true class counts, so one round reads (M, N) values instead of (M, N, C).
            mixed = (total[rows, labels] + true_values) / np.float32(count + 1)
            eps = np.finfo(np.float32).eps
            return np.asarray(np.log(np.clip(mixed, eps, 1 - eps)).mean(1, dtype=np.float64))
        mixes = (to_probabilities((total + part) / (count + 1), mixing) for part in parts)
        return np.array([metric.evaluate(labels, mixed) for mixed in mixes])

    return _search(trial_scores, lambda pick: np.add(total, parts[pick], out=total), true_values, rounds, allowed)


def shortlist_of(parts: np.ndarray, labels: np.ndarray, mixing: str) -> Shortlist:
    """The classes that can win.  parts: (M, N, C) float32 in the space of `mixing` (`to_mixing_space`)."""
    return shortlist(lambda part: parts[:, part], [slice(0, len(labels))], labels, mixing)


def shortlist_picks(short: Shortlist, metric: Metric, rounds: int, allowed: Allowed | None = None) -> list[int]:
    """`greedy_picks` for a metric of labels, exact, from the classes that can win."""
    is_undecided = short.undecided()
    decided, undecided = short.take(np.flatnonzero(~is_undecided)), short.take(np.flatnonzero(is_undecided))
    decided_counts = decided.counts(decided.listed)
    parts = -(-undecided.values.size // ENTRIES_AT_ONCE)
    blocks = [undecided.take(rows) for rows in np.array_split(np.arange(len(undecided.labels)), max(parts, 1))]
    totals = [np.zeros(len(block.listed), np.float32) for block in blocks]

    def trial_scores(count: int) -> np.ndarray:
        counts = decided_counts
        for block, total in zip(blocks, totals, strict=True):
            counts = block.counts(block.winners(total + block.values)) + counts
        return metric.evaluate_counts(counts)

    def add_member(pick: int) -> None:
        for block, total in zip(blocks, totals, strict=True):
            total += block.values[pick]

    return _search(trial_scores, add_member, short.true_values, rounds, allowed)


def _search(
    trial_scores: Callable[[int], np.ndarray],
    add_member: Callable[[int], object],
    true_values: np.ndarray,
    rounds: int,
    allowed: Allowed | None,
) -> list[int]:
    """trial_scores: number of picks so far -> (M,) scores of one more.  true_values: (M, n), of the true classes."""
    picks: list[int] = []
    best, best_length = -np.inf, 0
    for _ in range(rounds):
        scores = trial_scores(len(picks))
        if allowed is not None:
            scores = np.where(allowed(picks), scores, -np.inf)
        if not np.isfinite(scores.max()):
            break
        tied = np.flatnonzero(scores == scores.max())
        pick = int(tied[0])
        if len(tied) > 1:  # the member that makes the true classes most likely together with the picks so far
            picked_sum = true_values[picks].sum(0) if picks else np.zeros(true_values.shape[1], np.float32)
            # Logarithms are averaged directly; values >= 0 (probabilities, ranks) through the logarithm of their sum.
            likelihoods = [
                np.log(np.maximum(picked_sum + values, 1e-7)).mean() if values.min() >= 0 else values.mean()
                for values in true_values[tied]
            ]
            pick = int(tied[np.argmax(likelihoods)])
        picks.append(pick)
        add_member(pick)
        if scores[pick] > best:
            best, best_length = scores[pick], len(picks)
    return picks[:best_length]


def weights_of(picks: list[int], members: int) -> np.ndarray:
    """(M,) float64, not negative, sum 1."""
    return np.bincount(picks, minlength=members) / len(picks)
