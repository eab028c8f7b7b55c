"""For each row the few classes that can win: what a search on a metric of labels has to look at.

A class that every member ranks below one other class loses to it in every weighted mean. What is left is a few classes
a row, so a search over weights costs S entries instead of N x C, and the predictions are read once, in chunks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from competition.ensemble.metrics import LabelCounts
from competition.ensemble.mixing import FLOOR

LOWEST = {"mean": FLOOR, "geometric": float(np.log(FLOOR)) + 1e-5, "rank": -np.inf}  # below it, a value cannot win

Reader = Callable[[slice], np.ndarray]  # rows -> (M, n, C) float32


@dataclass(frozen=True)
class Shortlist:
    """S listed classes of n rows, row by row, in the order of class numbers.

    labels: (n,) int.  start: (n + 1,) int, where each row's classes begin.  listed: (S,) int class numbers.
    values: (M, S) float32, what is summed.  own: (M, n) float32, the value of each row's own class, listed or not.
    """

    classes: int  # C
    labels: np.ndarray
    start: np.ndarray
    listed: np.ndarray
    values: np.ndarray
    own: np.ndarray

    @property
    def row_of(self) -> np.ndarray:
        """(S,) int."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.start))

    def take(self, rows: np.ndarray) -> "Shortlist":
        """The same for some rows, by number."""
        lengths = np.diff(self.start)[rows]
        start = np.concatenate([[0], lengths.cumsum()])
        at = np.arange(start[-1]) + np.repeat(self.start[rows] - start[:-1], lengths)
        return Shortlist(self.classes, self.labels[rows], start, self.listed[at], self.values[:, at], self.own[:, rows])

    def undecided(self) -> np.ndarray:
        """(n,) bool: rows with more than one listed class."""
        return np.diff(self.start) > 1

    def winners(self, total: np.ndarray) -> np.ndarray:
        """(..., S) sums -> (..., n) int: the class of the largest, the first of equals."""
        return self.listed[self.places(total)]

    def places(self, total: np.ndarray) -> np.ndarray:
        """(..., S) sums -> (..., n) int: where the largest of each row stands."""
        if not len(self.labels):
            return np.zeros((*total.shape[:-1], 0), np.int64)
        top = np.maximum.reduceat(total, self.start[:-1], axis=-1)
        is_top = total == np.repeat(top, np.diff(self.start), axis=-1)
        place = np.where(is_top, np.arange(total.shape[-1]), total.shape[-1])
        return np.minimum.reduceat(place, self.start[:-1], axis=-1)

    def tally(self, given: np.ndarray) -> LabelCounts:
        """given: (..., n) int labels."""
        return tally_of(self.labels, given, self.classes)


def tally_of(labels: np.ndarray, given: np.ndarray, classes: int) -> LabelCounts:
    """labels: (n,) int.  given: (..., n) int."""
    sets = int(np.prod(given.shape[:-1], dtype=np.int64))
    flat = given.reshape(sets, len(labels))
    code = flat + classes * np.arange(sets)[:, None]
    hit = flat == labels
    shape = (*given.shape[:-1], classes)
    gap = (flat - labels).astype(np.float64)
    return LabelCounts(
        hits=np.bincount(code[hit], minlength=sets * classes).reshape(shape),
        predicted=np.bincount(code.ravel(), minlength=sets * classes).reshape(shape),
        actual=np.bincount(labels, minlength=classes),
        squares=np.square(gap).sum(1).reshape(given.shape[:-1]),
    )


def shortlist(
    read: Reader, parts: Iterable[slice], labels: np.ndarray, mixing: str, factors: np.ndarray | None = None
) -> Shortlist:
    """read: the members' values for a slice of rows.  parts: slices that cover all rows.  labels: (N,) int.

    factors: (C, C) >= 1; class c stays listed beside class d unless factors[d, c] times its value is below d's in
    every member: for decision rules that favour c over d by so much. None = 1.
    """
    made = [_listed(read(part), labels[part], mixing, factors) for part in parts]
    lengths = np.concatenate([np.diff(one.start) for one in made])
    return Shortlist(
        made[0].classes,
        labels,
        np.concatenate([[0], lengths.cumsum()]),
        np.concatenate([one.listed for one in made]),
        np.concatenate([one.values for one in made], axis=1),
        np.concatenate([one.own for one in made], axis=1),
    )


def _listed(values: np.ndarray, labels: np.ndarray, mixing: str, factors: np.ndarray | None) -> Shortlist:
    """values: (M, n, C)."""
    at, lowest = np.arange(len(labels)), np.float32(LOWEST[mixing])
    leader = values.sum(0).argmax(1)
    favour = None if factors is None else factors[leader]
    can_win = np.zeros(values.shape[1:], bool)
    for member in values:
        bar = np.maximum(member[at, leader], lowest)[:, None]
        can_win |= (member if favour is None else member * favour) >= bar
    can_win[at, leader] = True
    row, listed = np.nonzero(can_win)
    start = np.concatenate([[0], np.bincount(row, minlength=len(labels)).cumsum()])
    own = values[:, at, labels]
    short = Shortlist(values.shape[2], labels, start, listed.astype(np.int32), values[:, row, listed], own)
    for m in range(len(values)):
        short = _without_losers_to(m, short, lowest, factors)
    return short


def _without_losers_to(m: int, short: Shortlist, lowest: np.float32, factors: np.ndarray | None) -> Shortlist:
    """Without the classes that lose to the first choice of member m in every member."""
    row = short.row_of
    rival = short.places(short.values[m])[row]
    values = short.values if factors is None else short.values * factors[short.listed[rival], short.listed]
    keep = (values >= np.maximum(short.values[:, rival], lowest)).any(0)
    keep[rival] = True
    start = np.concatenate([[0], np.bincount(row[keep], minlength=len(short.labels)).cumsum()])
    return Shortlist(short.classes, short.labels, start, short.listed[keep], short.values[:, keep], short.own)
