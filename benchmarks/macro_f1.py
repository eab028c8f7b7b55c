"""macro-F1 by counts against scikit-learn's f1_score, 16,465 rows x 104 classes. python -m benchmarks.macro_f1"""

from collections.abc import Callable
from time import perf_counter

import numpy as np
from sklearn.metrics import f1_score

from benchmarks.flowers_predictions import CLASSES, class_counts
from competition.ensemble.metrics import METRICS

ROWS, TIMES = 16_465, 100


def median_seconds(function: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    rng = np.random.default_rng(0)
    counts = class_counts()
    labels = rng.choice(CLASSES, ROWS, p=counts / counts.sum())
    predicted = np.where(rng.random(ROWS) < 0.95, labels, rng.integers(0, CLASSES, ROWS))

    def by_counts() -> float:
        return METRICS["macro_f1"].evaluate(labels, predicted, CLASSES)

    def reference() -> float:
        return float(f1_score(labels, predicted, labels=range(CLASSES), average="macro", zero_division=0))

    ours_seconds, reference_seconds = median_seconds(by_counts), median_seconds(reference)
    print(
        f"scikit-learn {reference_seconds * 1e3:.2f} ms, by counts {ours_seconds * 1e3:.3f} ms: "
        f"{reference_seconds / ours_seconds:.0f} times as fast"
    )
    print(f"difference {abs(by_counts() - reference()):.1e}")


if __name__ == "__main__":
    main()
