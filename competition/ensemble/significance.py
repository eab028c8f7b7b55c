"""Significance of the difference between two results on the same rows.

A verdict ("a gain", "a loss") is printed only if chance alone gives such a difference in at most 5 % of cases. A choice
between candidates uses one standard error, because one of them must be selected, but it never depends on one changed
row, or on two against one. Rates on simulated pairs of equally good
classifiers: benchmarks/false_verdicts.py.
"""

import math
from dataclasses import dataclass

import numpy as np

from competition.ensemble.metrics import Metric

LEVEL = 0.05  # two-sided: the rate of false verdicts
CHOICE_LEVEL = 0.16  # one-sided: a normal variable exceeds one standard deviation in 15.9 % of cases
NORMAL_95 = 1.96
FEW_SWAPS = 12  # up to this many changed rows all 2^n swaps are computed, above it a sample
SWAPS = 1_000  # sample size; the standard error of p = 0.05 is 0.007
CELLS_AT_ONCE = 4_000_000  # samples x kinds of rows (or classes) in memory


@dataclass(frozen=True, slots=True)
class Difference:
    """after - before on the same rows."""

    value: float
    error: float
    low: float  # of the 95 % interval, without the spread over training seeds
    high: float
    changed: int  # rows whose predicted label changed
    corrected: int  # wrong before, correct after
    corrupted: int  # correct before, wrong after; a net gain can hide many of both (Shanmugam et al., ICCV 2021)
    seeds: float = 0.0  # standard deviation over training seeds; 0 = not measured
    swap_p: float = 0.0  # two-sided mid-p of `swap_test`; 0 = not tested (metrics of probabilities, older results)

    @property
    def noise(self) -> float:
        """Standard error and spread over training seeds, combined."""
        return math.hypot(self.error, self.seeds)

    @property
    def p_value(self) -> float:
        """Two-sided p-value: the larger of two tests, so both must agree.

        The normal test on value / noise includes the spread over seeds; for metrics of labels the swap test of changed
        rows is valid for any number of rows.
        """
        if not self.noise:
            return 1.0 if not self.value else self.swap_p
        return max(self.swap_p, math.erfc(abs(self.value) / self.noise / math.sqrt(2)))

    @property
    def is_significant(self) -> bool:
        """For verdicts: two equally good classifiers differ this much in at most 5 % of cases."""
        return self.value != 0 and self.p_value <= LEVEL

    @property
    def is_better(self) -> bool:
        """For choices: better by more than the noise, and not only by one row, or by two against one.

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

    labels, before, after: (N,) int, or (N, C) bool.  The approximate randomization test of Noreen (1989), used for F1
    since Yeh (2000). Only changed rows matter. For accuracy this is the exact McNemar test. For macro-F1 a row counts by
    its effect on the score, so a rule that trades common rows for rare ones is not judged by the number of rows.
    """
    changed = (before != after).reshape(len(labels), -1).any(1)
    rows, rng = int(np.count_nonzero(changed)), np.random.default_rng(seed)
    if not rows:
        return 1.0, 0.0
    if metric.name == "accuracy":
        corrected, corrupted = (int(np.count_nonzero((one == labels) & changed)) for one in (after, before))
        return mcnemar_mid_p(corrected, corrupted), math.sqrt(corrected + corrupted) / len(labels)
    fixed, fixed_count = _kinds_of_rows([labels[~changed], before[~changed]])
    kinds, count = [labels[changed], before[changed], after[changed]], np.ones(rows, np.int64)
    if rows <= FEW_SWAPS:  # every way to swap them
        swapped = (np.arange(2**rows)[:, None] >> np.arange(rows)) & 1
    elif metric.target == "multi":
        swapped = rng.integers(0, 2, (SWAPS, rows))
    else:
        kinds, count = _kinds_of_rows(kinds)
        swapped = rng.binomial(count, 0.5, (SWAPS, len(count)))
    # Each changed kind appears twice, with its result before and after.
    all_labels, all_outputs = np.concatenate([fixed[0], kinds[0], kinds[0]]), np.concatenate([fixed[1], *kinds[1:]])

    def gaps_of(swapped: np.ndarray) -> np.ndarray:
        """(R,) differences after - before.  swapped: (R, U) rows of each changed kind."""
        unswapped, always = count - swapped, np.tile(fixed_count, (len(swapped), 1))
        first, second = (
            metric.evaluate_weighted(all_labels, all_outputs, np.concatenate([always, *parts], axis=1), classes)
            for parts in ((unswapped, swapped), (swapped, unswapped))
        )
        return second - first

    at_once = max(1, CELLS_AT_ONCE // max(classes, len(all_labels)))
    gaps = np.concatenate([gaps_of(swapped[start : start + at_once]) for start in range(0, len(swapped), at_once)])
    value = abs(gaps_of(np.zeros_like(swapped[:1]))[0])
    beyond = np.count_nonzero(np.abs(gaps) > value + 1e-12)
    equal = np.count_nonzero(np.abs(np.abs(gaps) - value) <= 1e-12)
    # The result itself is one of the possible samples (Davison & Hinkley 1997).
    itself = 1 if rows > FEW_SWAPS else 0
    return min(1.0, float((beyond + equal / 2 + itself) / (len(gaps) + itself))), float(gaps.std())


def _kinds_of_rows(columns: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct rows of (N,) columns, and how many there are of each; (N, C) columns are returned as they are."""
    if columns[0].ndim == 2:
        return columns, np.ones(len(columns[0]), np.int64)
    kinds, count = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    return list(kinds.T), count
