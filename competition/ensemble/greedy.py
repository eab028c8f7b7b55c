"""Greedy selection with replacement (Caruana et al., "Ensemble Selection from Libraries of Models", ICML 2004).

Members are added one at a time, each time the one that helps the mean most; how often one was picked is its weight.
The search is exact and fast because one more member cannot overturn a row whose leading class is far enough ahead:
only rows in doubt are looked at again, and only their counts move.
"""

from collections.abc import Callable

import numpy as np

from competition.ensemble.metrics import Metric, Tally, tally
from competition.ensemble.mixing import finish

Trial = Callable[[np.ndarray, int], np.ndarray]  # sum of the picks so far (n, C), their number -> (M,) scores
PAIRS_AT_ONCE = 200_000  # (member, row) pairs in one piece; bounds the memory


def greedy_picks(
    parts: np.ndarray,
    labels: np.ndarray,
    metric: Metric,
    rounds: int,
    rows: np.ndarray | None = None,
    allowed: Callable[[list[int]], np.ndarray] | None = None,
    mixing: str = "mean",
) -> list[int]:
    """Add, at most `rounds` times, the member that helps the mean most; return the shortest best prefix.

    parts: (M, N, C) float32, what is summed, made by `mixing.prepare`.  mixing: how; what is scored is finished by it.
    labels: (N,) int.  rows: (n,) int, the rows that count; None = all of them.
    allowed: picks so far -> (M,) bool, for a limit on cost.
    Ties go to the member that leaves the true classes most likely, then to the earliest: no seed has a say.
    """
    rows = np.arange(len(labels)) if rows is None else rows
    trial = _trial(parts, labels, metric, rows, mixing)
    own = parts[:, rows, labels[rows]]  # (M, n)
    total = np.zeros((len(rows), parts.shape[2]), np.float32)
    picks: list[int] = []
    best, best_length = -np.inf, 0
    for _ in range(rounds):
        scores = trial(total, len(picks))
        if allowed is not None:
            scores = np.where(allowed(picks), scores, -np.inf)
        if not np.isfinite(scores.max()):
            break
        pick = _break_tie(np.flatnonzero(scores == scores.max()), own, picks)
        picks.append(pick)
        total += parts[pick, rows]
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
    """Scores of adding each member to the picks so far, the fastest way the metric allows."""
    truth = labels[rows]
    if metric.of_tally is not None:  # the label is that of the sum: no mixing's `finish` moves a row's largest entry
        return _label_trial(parts, truth, metric.of_tally, rows)
    if metric.name == "log_loss" and mixing == "mean":
        # Only the true class's probability counts, so a trial costs (M, n) instead of (M, n, C).
        own = parts[:, rows, truth]
        eps = np.finfo(np.float32).eps

        def log_loss(total: np.ndarray, count: int) -> np.ndarray:
            have = total[np.arange(len(truth)), truth]
            return np.log(np.clip((have + own) / np.float32(count + 1), eps, 1 - eps)).mean(1, dtype=np.float64)

        return log_loss

    def plain(total: np.ndarray, count: int) -> np.ndarray:
        return np.array([metric.score(truth, finish((total + part[rows]) / (count + 1), mixing)) for part in parts])

    return plain


def _label_trial(parts: np.ndarray, truth: np.ndarray, score: Callable[[Tally], np.ndarray], rows: np.ndarray) -> Trial:
    """The exact score of the label of (total + part) for every member, without forming most of these sums."""
    members, _, classes = parts.shape
    top = np.stack([part[rows].max(1) for part in parts])  # (M, n)
    first = np.stack([part[rows].argmax(1) for part in parts])  # (M, n)

    def alone(total: np.ndarray, count: int) -> np.ndarray:
        tallies = [tally(truth, first[m], classes) for m in range(members)]
        return score(_stack(tallies))

    def trial(total: np.ndarray, count: int) -> np.ndarray:
        if count == 0:
            return alone(total, count)
        at = np.arange(len(rows))
        leader = total.argmax(1)
        lead = total[at, leader]
        others = total.copy()
        others[at, leader] = -np.inf
        # Member m can overturn row i only when its favourite is ahead of the leader, in m, by the leader's lead.
        # The slack is far above the rounding of float32 sums: rows in doubt are looked at, so the result is exact.
        slack = np.float32(1e-5) * (np.abs(lead) + 10)
        doubtful = top - parts[:, rows, leader] >= lead - others.max(1) - slack
        member, row = np.nonzero(doubtful)
        moves = [np.zeros((0, 3), np.int64)]
        for start in range(0, len(member), PAIRS_AT_ONCE):
            m, i = member[start : start + PAIRS_AT_ONCE], row[start : start + PAIRS_AT_ONCE]
            label = (total[i] + parts[m, rows[i]]).argmax(1)
            moved = label != leader[i]
            moves.append(np.stack([m[moved], i[moved], label[moved]], axis=1))
        return score(_moved(tally(truth, leader, classes), truth, leader, np.concatenate(moves), members))

    return trial


def _moved(base: Tally, truth: np.ndarray, leader: np.ndarray, moves: np.ndarray, members: int) -> Tally:
    """`base` for each member, after its moves.  moves: (P, 3) int of member, row, new label."""
    m, i, new = moves.T
    old, classes = leader[i], base.predicted.shape[-1]

    def count(where: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.bincount(m[where] * classes + at[where], minlength=members * classes).reshape(members, classes)

    anywhere = np.ones(len(m), bool)
    gap_new, gap_old = (new - truth[i]).astype(np.float64), (old - truth[i]).astype(np.float64)
    return Tally(
        hits=base.hits + count(new == truth[i], new) - count(old == truth[i], old),
        predicted=base.predicted + count(anywhere, new) - count(anywhere, old),
        actual=base.actual,
        squares=base.squares + np.bincount(m, weights=gap_new**2 - gap_old**2, minlength=members),
    )


def _stack(tallies: list[Tally]) -> Tally:
    return Tally(
        hits=np.stack([t.hits for t in tallies]),
        predicted=np.stack([t.predicted for t in tallies]),
        actual=tallies[0].actual,
        squares=np.stack([t.squares for t in tallies]),
    )
