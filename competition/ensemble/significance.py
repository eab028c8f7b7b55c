"""Is a difference between two results on the same rows more than chance?

Two questions with two answers. A verdict ("a gain", "a loss") is printed only where chance alone gives such a
difference in at most 5 % of cases. A choice among candidates uses one standard error, because it has to take one of
them anyway; but it never follows one changed row, or two against one. Rates on simulated pairs of equally good
classifiers: benchmarks/false_verdicts.py.
"""

import math
from dataclasses import dataclass

import numpy as np

from competition.ensemble.metrics import LabelCounts, Metric, tally_of_counts

LEVEL = 0.05  # two-sided: the rate of false verdicts
CHOICE_LEVEL = 0.16  # one-sided: a normal variable exceeds one standard deviation in 15.9 % of cases
NORMAL_95 = 1.96
FEW_SWAPS = 12  # up to this many changed rows all 2^n swaps are computed, else a sample of them
SWAPS = 1_000  # sample size; the standard error of p = 0.05 is 0.007
CELLS_AT_ONCE = 4_000_000  # samples x kinds of rows (or classes) held at once


@dataclass(frozen=True, slots=True)
class Difference:
    """after - before on the same rows."""

    value: float
    error: float
    low: float  # of the 95 % interval, without other seeds
    high: float
    changed: int  # rows with another label
    corrected: int  # rows that were wrong and are right
    corrupted: int  # rows that were right and are wrong: a net gain hides many of both (Shanmugam et al., ICCV 2021)
    seeds: float = 0.0  # what other seeds of the training alone would change, a standard deviation; 0 = not studied
    swap_p: float = 0.0  # two-sided mid-p of `swap_test`; 0 = not tested (metrics of probabilities, older results)

    @property
    def noise(self) -> float:
        """The standard error of these rows and the spread over seeds, together."""
        return math.hypot(self.error, self.seeds)

    @property
    def p_value(self) -> float:
        """How often chance alone gives a difference at least this large in either direction.

        The larger of two tests, so both must agree: the normal test on value / noise, which knows the spread over
        seeds, and for metrics of labels the exact test on changed rows, which is right however few they are.
        """
        if not self.noise:
            return 1.0 if not self.value else self.swap_p
        return max(self.swap_p, math.erfc(abs(self.value) / self.noise / math.sqrt(2)))

    @property
    def is_significant(self) -> bool:
        """For verdicts: two classifiers that are equally good differ this much in at most 5 % of cases."""
        return self.value != 0 and self.p_value <= LEVEL

    @property
    def is_better(self) -> bool:
        """For choices: better by more than its noise, and not because of one row, or two against one.

        The one-standard-error rule: of two equally good candidates the second wins in about 16 % of cases. One-sided,
        the exact test of one corrected row gives 0.25, of two against one 0.31, of two against none 0.125.
        """
        return self.value > self.noise and self.swap_p / 2 <= CHOICE_LEVEL


def mcnemar_mid_p(corrected: int, corrupted: int) -> float:
    """Two-sided exact McNemar test with mid-p (Fagerland, Lydersen & Laake 2013): are both equally likely?

    2 (P(X > k) + P(X = k) / 2) for X ~ Binomial(corrected + corrupted, 1/2), k the larger of the two numbers.
    """
    from scipy.special import bdtrc

    rows, k = corrected + corrupted, max(corrected, corrupted)
    chance_of_k = math.exp(math.lgamma(rows + 1) - math.lgamma(k + 1) - math.lgamma(rows - k + 1) - rows * math.log(2))
    return min(1.0, 2 * float(bdtrc(k, rows, 0.5)) + chance_of_k)


def swap_test(
    labels: np.ndarray, before: np.ndarray, after: np.ndarray, metric: Metric, classes: int, seed: int
) -> tuple[float, float]:
    """(two-sided mid-p, standard deviation of the difference) when before and after are swapped at random in each row.

    labels, before, after: (N,) int.  The approximate randomization test of Noreen (1989), used for F1 since Yeh (2000).
    Only changed rows count. For accuracy this is the exact McNemar test; for macro-F1 a row counts by what it changes,
    so a rule that gives up common rows for rare ones is not judged by their number alone.
    """
    assert metric.from_counts is not None
    moved = before != after
    if not moved.any():
        return 1.0, 0.0
    if metric.name == "accuracy":
        right, wrong = (int(np.count_nonzero((one == labels) & moved)) for one in (after, before))
        return mcnemar_mid_p(right, wrong), math.sqrt(right + wrong) / len(labels)
    rest = labels[~moved][None], before[~moved][None]
    base = tally_of_counts(rest[0][0], rest[1][0], np.ones((1, rest[0].size)), classes)
    rows = np.stack([labels, before, after], axis=1)[moved]
    if len(rows) <= FEW_SWAPS:
        kinds, count = rows, np.ones(len(rows), np.int64)
        swapped = (np.arange(2 ** len(rows))[:, None] >> np.arange(len(rows))) & 1
    else:
        kinds, count = np.unique(rows, axis=0, return_counts=True)
        swapped = np.random.default_rng(seed).binomial(count, 0.5, (SWAPS, len(kinds)))
    at_once = max(1, CELLS_AT_ONCE // max(classes, 2 * len(kinds)))
    pieces = [swapped[start : start + at_once] for start in range(0, len(swapped), at_once)]
    gaps = np.concatenate([_gaps(kinds, count, piece, base, metric, classes) for piece in pieces])
    value = abs(_gaps(kinds, count, np.zeros((1, len(kinds)), np.int64), base, metric, classes)[0])
    beyond = np.count_nonzero(np.abs(gaps) > value + 1e-12)
    equal = np.count_nonzero(np.abs(np.abs(gaps) - value) <= 1e-12)
    if len(rows) > FEW_SWAPS:  # the result itself is one of the possible samples (Davison & Hinkley 1997)
        return min(1.0, float((beyond + equal / 2 + 1) / (len(gaps) + 1))), float(gaps.std())
    return float((beyond + equal / 2) / len(gaps)), float(gaps.std())


def _gaps(
    kinds: np.ndarray, count: np.ndarray, swapped: np.ndarray, base: LabelCounts, metric: Metric, classes: int
) -> np.ndarray:
    """(R,) differences.  kinds: (U, 3) label, before, after.  count: (U,) rows.  swapped: (R, U) of them swapped."""
    assert metric.from_counts is not None
    labels, before, after = kinds.T
    both = np.concatenate([labels, labels]), np.concatenate([before, after])
    kept = count - swapped
    first = tally_of_counts(*both, np.concatenate([kept, swapped], axis=1), classes)
    second = tally_of_counts(*both, np.concatenate([swapped, kept], axis=1), classes)
    return metric.from_counts(second + base) - metric.from_counts(first + base)
