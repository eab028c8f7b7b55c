"""Greedy selection with replacement (Caruana et al., "Ensemble Selection from Libraries of Models", ICML 2004).

Members are added one at a time, each time the one that helps the mean most; how often one was picked is its weight.
For a metric of labels the search is exact and fast because it looks at the classes that can win alone (`shortlist`).
"""

from collections.abc import Callable

import numpy as np

from competition.ensemble.metrics import Metric
from competition.ensemble.mixing import to_probabilities
from competition.ensemble.shortlist import Shortlist, shortlist

Trial = Callable[[np.ndarray, int], np.ndarray]  # sum of the picks so far (n, C), their number -> (M,) scores
Allowed = Callable[[list[int]], np.ndarray]  # picks so far -> (M,) bool
ENTRIES_AT_ONCE = 500_000  # members x listed classes in one piece; bounds the memory


def greedy_picks(
    parts: np.ndarray,
    labels: np.ndarray,
    metric: Metric,
    rounds: int,
    rows: np.ndarray | None = None,
    allowed: Allowed | None = None,
    mixing: str = "mean",
) -> list[int]:
    """Add, at most `rounds` times, the member that helps the mean most; return the shortest best prefix.

    parts: (M, N, C) float32, what is summed, made by `mixing.prepare`.  mixing: how; what is scored is finished by it.
    labels: (N,) int.  rows: (n,) int, the rows that count; None = all of them.
    allowed: picks so far -> (M,) bool, for a limit on cost.
    Ties go to the member that leaves the true classes most likely, then to the earliest: no seed has a say.
    """
    rows = np.arange(len(labels)) if rows is None else rows
    if metric.from_counts is not None:  # the label is that of the sum: no mixing's `finish` moves a row's largest entry
        return shortlist_picks(shortlist_of(parts, labels, mixing).take(rows), metric, rounds, allowed)
    trial = _trial(parts, labels, metric, rows, mixing)
    own = parts[:, rows, labels[rows]]  # (M, n)
    total = np.zeros((len(rows), parts.shape[2]), np.float32)

    def add_member(pick: int) -> None:
        total[:] += parts[pick, rows]

    return _search(lambda count: trial(total, count), add_member, own, rounds, allowed)


def shortlist_of(parts: np.ndarray, labels: np.ndarray, mixing: str) -> Shortlist:
    """parts: (M, N, C) float32, made by `mixing.prepare`."""
    return shortlist(lambda part: parts[:, part], [slice(0, len(labels))], labels, mixing)


def shortlist_picks(short: Shortlist, metric: Metric, rounds: int, allowed: Allowed | None = None) -> list[int]:
    """`greedy_picks` for a metric of labels: exact, from the classes that can win."""
    assert metric.from_counts is not None
    score, members = metric.from_counts, len(short.values)
    open_rows = short.undecided()
    settled, rest = short.take(np.flatnonzero(~open_rows)), short.take(np.flatnonzero(open_rows))
    base = settled.tally(settled.listed)
    total = np.zeros(len(rest.listed), np.float32)
    at_once = max(1, ENTRIES_AT_ONCE // max(len(total), 1))

    def trial(count: int) -> np.ndarray:
        pieces = [slice(start, start + at_once) for start in range(0, members, at_once)]
        return np.concatenate([score(rest.tally(rest.winners(total + rest.values[p])) + base) for p in pieces])

    def add_member(pick: int) -> None:
        total[:] += rest.values[pick]

    return _search(trial, add_member, short.own, rounds, allowed)


def _search(
    trial: Callable[[int], np.ndarray],
    add_member: Callable[[int], None],
    own: np.ndarray,
    rounds: int,
    allowed: Allowed | None,
) -> list[int]:
    """trial: number of picks so far -> (M,) scores of one more.  own: (M, n) values of the true classes."""
    picks: list[int] = []
    best, best_length = -np.inf, 0
    for _ in range(rounds):
        scores = trial(len(picks))
        if allowed is not None:
            scores = np.where(allowed(picks), scores, -np.inf)
        if not np.isfinite(scores.max()):
            break
        pick = _break_tie(np.flatnonzero(scores == scores.max()), own, picks)
        picks.append(pick)
        add_member(pick)
        if scores[pick] > best:
            best, best_length = scores[pick], len(picks)
    return picks[:best_length]


def weights_of(picks: list[int], members: int) -> np.ndarray:
    """(M,) float64, not negative, sum 1."""
    return np.bincount(picks, minlength=members) / len(picks)


def _break_tie(tied: np.ndarray, own: np.ndarray, picks: list[int]) -> int:
    """Of the tied members the one that makes the true classes most likely, given the picks so far."""
    if len(tied) == 1:
        return int(tied[0])
    so_far = own[picks].sum(0) if picks else np.zeros(own.shape[1], np.float32)
    # Logarithms and ranks are summed as they are; probabilities (all >= 0) through the logarithm of their sum.
    likely = [np.log(np.maximum(so_far + own[m], 1e-7)).mean() if own[m].min() >= 0 else own[m].mean() for m in tied]
    return int(tied[np.argmax(likely)])


def _trial(parts: np.ndarray, labels: np.ndarray, metric: Metric, rows: np.ndarray, mixing: str) -> Trial:
    """Scores of adding each member to the picks so far, for a metric of probabilities."""
    truth = labels[rows]
    if metric.name == "log_loss" and mixing == "mean":
        # Only the true class's probability counts, so a trial costs (M, n) instead of (M, n, C).
        own = parts[:, rows, truth]
        eps = np.finfo(np.float32).eps

        def log_loss(total: np.ndarray, count: int) -> np.ndarray:
            have = total[np.arange(len(truth)), truth]
            return np.log(np.clip((have + own) / np.float32(count + 1), eps, 1 - eps)).mean(1, dtype=np.float64)

        return log_loss

    def plain(total: np.ndarray, count: int) -> np.ndarray:
        return np.array(
            [metric.score(truth, to_probabilities((total + part[rows]) / (count + 1), mixing)) for part in parts]
        )

    return plain
