"""Coverage of the 95 % interval for leaderboards.  python -m benchmarks.leaderboard_coverage [competitions] [seed]

Simulated flower competitions: 104 unequal classes, a classifier of about 0.93 macro-F1 whose confusions are counted
on 72,000 rows of `flowers_predictions` and taken as the true distribution. Each competition draws out-of-fold rows, computes the
interval from them alone, and is checked against leaderboards drawn from the same distribution, for three numbers of
test rows and both definitions of macro-F1. Also printed: the error of the interval's centre in standard deviations.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.flowers_predictions import CLASSES, draw_predictions
from competition.ensemble.bootstrap import Evaluation
from competition.ensemble.expected_score import expected_scores, interval
from competition.ensemble.metrics import METRICS, Metric, label_counts_of_samples

TEST_ROWS = (450, 2_214, 7_382)  # digits' size; 30 % and all of the flowers' test rows
OOF_ROWS = (3_000, 12_753)
RESAMPLES = 200
BOARDS = 2_000  # leaderboards each interval is checked against


@dataclass(frozen=True)
class Truth:
    """kinds: (U, 2) label and prediction.  share: (U,) of rows, sum 1."""

    kinds: np.ndarray
    share: np.ndarray

    def scores(self, rows: int, boards: int, metric: Metric, rng: np.random.Generator) -> np.ndarray:
        """(boards,) scores of leaderboards of `rows` rows."""
        assert metric.from_counts is not None
        counts = rng.multinomial(rows, self.share, size=boards)
        labels, predicted = self.kinds.T
        return metric.from_counts(label_counts_of_samples(labels, predicted, counts, CLASSES))

    def rows(self, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(labels, predictions) of rows drawn at random; every class has one, as in any competition's training rows."""
        for _ in range(100):
            labels, predicted = np.repeat(self.kinds, rng.multinomial(rows, self.share), axis=0).T
            if len(np.unique(labels)) == CLASSES:
                return labels, predicted
        raise AssertionError(f"{rows} rows are too few for every class to have one")


def truth(parts: int = 12) -> Truth:
    """Distribution of (label, prediction) of one simulated network on parts x 6,000 rows."""
    pairs = []
    for seed in range(parts):
        labels, probs = draw_predictions(seed + 100, 6_000, 1, 0.0, 0)
        pairs.append(np.stack([labels, probs[0].argmax(1)], axis=1))
    kinds, count = np.unique(np.concatenate(pairs), axis=0, return_counts=True)
    return Truth(kinds, count / count.sum())


def coverage(
    distribution: Truth,
    metric: Metric,
    oof_rows: int,
    test_rows: Sequence[int],
    competitions: int,
    seed: int,
    resamples: int = RESAMPLES,
    boards: int = BOARDS,
) -> list[tuple[float, float]]:
    """(coverage, mean distance of the leaderboards from the middle in standard deviations) per number of test rows."""
    rng = np.random.default_rng(seed)
    scores = [distribution.scores(rows, boards, metric, rng) for rows in test_rows]
    coverages, distances = np.zeros((2, competitions, len(test_rows)))
    for n in range(competitions):
        labels, predicted = distribution.rows(oof_rows, rng)
        for i, rows in enumerate(test_rows):
            evaluation = Evaluation(metric, CLASSES, resamples, n)
            expected = expected_scores(labels, predicted, evaluation, rows, shares=(1.0,))
            low, high = interval(expected, rows)
            coverages[n, i] = np.mean((scores[i] >= low) & (scores[i] <= high))
            spread = np.hypot(expected[0].spread, expected[0].error)
            distances[n, i] = (scores[i].mean() - expected[0].middle) / spread
    return list(zip(coverages.mean(0).tolist(), distances.mean(0).tolist(), strict=True))


def main(competitions: int, seed: int) -> None:
    distribution = truth()
    print(f"{competitions} competitions: coverage of the 95 % interval (error of its centre)")
    for name in ("macro_f1", "macro_f1_present"):
        for oof_rows in OOF_ROWS:
            results = coverage(distribution, METRICS[name], oof_rows, TEST_ROWS, competitions, seed)
            columns = "  ".join(f"{rows:,}: {c:.3f} ({d:+.2f})" for rows, (c, d) in zip(TEST_ROWS, results))
            print(f"RESULT: {name}, {oof_rows:,} out-of-fold rows; by test rows {columns}", flush=True)


if __name__ == "__main__":
    main(*(int(value) for value in (sys.argv[1:] + ["300", "0"][len(sys.argv) - 1 :])))
