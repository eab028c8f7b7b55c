"""Shortlists: for each row the few classes that can win, which suffice for a search on a metric of labels.

A class that every member ranks below one other class loses to it in every weighted mean. A few classes per row remain,
so a search over weights reads S entries instead of N x C, and the predictions are read once, in chunks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from competition.ensemble.metrics import LabelCounts, count_labels
from competition.ensemble.mixing import FLOOR

LOWEST = {"mean": FLOOR, "geometric": float(np.log(FLOOR)) + 1e-5, "rank": -np.inf}  # a lower value cannot win

Reader = Callable[[slice], np.ndarray]  # rows -> (M, n, C) float32


@dataclass(frozen=True)
class Shortlist:
    """S listed classes of n rows, row by row, in the order of class numbers.

    labels: (n,) int.  start: (n + 1,) int, where each row's classes begin.  listed: (S,) int class numbers.
    values: (M, S) float32 in mixing space.  true_values: (M, n) float32, of each row's true class, listed or not.
    """

    classes: int  # C
    labels: np.ndarray
    start: np.ndarray
    listed: np.ndarray
    values: np.ndarray
    true_values: np.ndarray

    @property
    def row_of(self) -> np.ndarray:
        """(S,) int: the row of each entry."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.start))

    def take(self, rows: np.ndarray) -> "Shortlist":
        """The shortlist of some rows.  rows: (k,) int, row numbers."""
        lengths = np.diff(self.start)[rows]
        start = np.concatenate([[0], lengths.cumsum()])
        entries = np.arange(start[-1]) + np.repeat(self.start[rows] - start[:-1], lengths)
        return Shortlist(
            self.classes,
            self.labels[rows],
            start,
            self.listed[entries],
            self.values[:, entries],
            self.true_values[:, rows],
        )

    def undecided(self) -> np.ndarray:
        """(n,) bool: rows with more than one listed class."""
        return np.diff(self.start) > 1

    def winners(self, total: np.ndarray) -> np.ndarray:
        """(..., S) sums -> (..., n) int: the class with the largest sum, the first of equals."""
        return self.listed[self.winning_entries(total)]

    def winning_entries(self, total: np.ndarray) -> np.ndarray:
        """(..., S) sums -> (..., n) int: the entry with the largest sum of each row."""
        if not len(self.labels):
            return np.zeros((*total.shape[:-1], 0), np.int64)
        top = np.maximum.reduceat(total, self.start[:-1], axis=-1)
        is_top = total == np.repeat(top, np.diff(self.start), axis=-1)
        position = np.where(is_top, np.arange(total.shape[-1]), total.shape[-1])
        return np.minimum.reduceat(position, self.start[:-1], axis=-1)

    def counts(self, predicted: np.ndarray) -> LabelCounts:
        """Label counts of predictions.  predicted: (..., n) int."""
        return count_labels(self.labels, predicted, self.classes)


def shortlist(
    read: Reader, parts: Iterable[slice], labels: np.ndarray, mixing: str, factors: np.ndarray | None = None
) -> Shortlist:
    """Compute the shortlist of all rows, chunk by chunk.

    read: returns the members' values for a slice of rows.  parts: slices that cover all rows.  labels: (N,) int.
    factors: (C, C) >= 1, for decision rules that may multiply class c by factors[d, c] relative to class d. Class d
    then removes class c only if factors[d, c] times its value is below the value of d in every member. None = 1.
    """
    shortlists = [_listed(read(part), labels[part], mixing, factors) for part in parts]
    lengths = np.concatenate([np.diff(one.start) for one in shortlists])
    return Shortlist(
        shortlists[0].classes,
        labels,
        np.concatenate([[0], lengths.cumsum()]),
        np.concatenate([one.listed for one in shortlists]),
        np.concatenate([one.values for one in shortlists], axis=1),
        np.concatenate([one.true_values for one in shortlists], axis=1),
    )


def _listed(values: np.ndarray, labels: np.ndarray, mixing: str, factors: np.ndarray | None) -> Shortlist:
    """The shortlist of one chunk.  values: (M, n, C)."""
    rows, lowest = np.arange(len(labels)), np.float32(LOWEST[mixing])
    leader = values.sum(0).argmax(1)
    row_factors = None if factors is None else factors[leader]
    can_win = np.zeros(values.shape[1:], bool)
    for member in values:
        threshold = np.maximum(member[rows, leader], lowest)[:, None]
        can_win |= (member if row_factors is None else member * row_factors) >= threshold
    can_win[rows, leader] = True
    row, listed = np.nonzero(can_win)
    start = np.concatenate([[0], np.bincount(row, minlength=len(labels)).cumsum()])
    true_values = values[:, rows, labels]
    short = Shortlist(values.shape[2], labels, start, listed.astype(np.int32), values[:, row, listed], true_values)
    for m in range(len(values)):  # remove the classes that lose to the most probable class of member m in every member
        row = short.row_of
        rival = short.winning_entries(short.values[m])[row]
        scaled = short.values if factors is None else short.values * factors[short.listed[rival], short.listed]
        keep = (scaled >= np.maximum(short.values[:, rival], lowest)).any(0)
        keep[rival] = True
        start = np.concatenate([[0], np.bincount(row[keep], minlength=len(labels)).cumsum()])
        short = replace(short, start=start, listed=short.listed[keep], values=short.values[:, keep])
    return short
