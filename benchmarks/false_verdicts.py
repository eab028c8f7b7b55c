"""How often is one of two equally good classifiers called better by chance?  python -m benchmarks.false_verdicts [pairs] [seed]

Pairs of classifiers make independent mistakes of the same kind on the same rows, so the truth is "no difference".
Printed per setting: the rate of verdicts "a gain" or "a loss" (claimed: at most 5 %), the rate at which a choice
would prefer the second (claimed: about 16 %), and the power: how often one with half as many own mistakes is called a gain.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.flowers_predictions import class_counts
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.metrics import METRICS
from competition.ensemble.significance import Difference

RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    metric: str
    rows: int
    shares: tuple[float, ...]  # one per class
    shared: float  # share of rows that both classify wrongly
    own: float  # share of the other rows that each classifies wrongly by itself


# Class shares evenly spaced on a logarithmic scale: classes, the largest divided by the smallest.
EQUAL, FEW, SOME, MANY = (
    tuple(np.geomspace(ratio, 1, n).tolist()) for n, ratio in ((10, 1), (3, 2), (10, 5), (10, 20))
)
FLOWERS = tuple(class_counts().tolist())
SETTINGS = (
    Setting("accuracy, few changed rows", "accuracy", 1347, EQUAL, 0.01, 0.002),
    Setting("accuracy, many changed rows", "accuracy", 1347, EQUAL, 0.10, 0.08),
    Setting("accuracy, 60 rows", "accuracy", 60, FEW, 0.10, 0.10),
    Setting("macro-F1, 10 classes", "macro_f1", 1000, MANY, 0.05, 0.03),
    Setting("macro-F1, 10 classes, few changed rows", "macro_f1", 1000, MANY, 0.01, 0.003),
    Setting("macro-F1, 10 classes, 80 rows", "macro_f1", 80, SOME, 0.10, 0.10),
    Setting("macro-F1, 104 classes", "macro_f1", 3000, FLOWERS, 0.04, 0.02),
    Setting("macro-F1, 104 classes, few changed rows", "macro_f1", 3000, FLOWERS, 0.04, 0.001),
    Setting("log loss, 10 classes", "log_loss", 500, SOME, 0.0, 0.0),
    Setting("log loss, 60 rows", "log_loss", 60, FEW, 0.0, 0.0),
)


def pair(setting: Setting, rng: np.random.Generator, better: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(labels, before, after).  better: own mistakes (for log loss, own noise) of the second, relative to the first."""
    share, classes = np.array(setting.shares) / sum(setting.shares), len(setting.shares)
    labels = rng.choice(classes, setting.rows, p=share)
    if not METRICS[setting.metric].needs_labels:
        evidence = rng.normal(size=(setting.rows, classes))
        evidence[np.arange(setting.rows), labels] += 2.5
        logits = [evidence + s * rng.normal(size=evidence.shape) for s in (0.7, 0.7 * better)]
        probs = [np.exp(x - x.max(1, keepdims=True)) for x in logits]
        first, second = (p / p.sum(1, keepdims=True) for p in probs)
        return labels, first, second

    def with_mistakes(predictions: np.ndarray, rate: float) -> np.ndarray:
        wrong = (labels + rng.integers(1, classes, len(labels))) % classes
        return np.where(rng.random(len(labels)) < rate, wrong, predictions)

    shared = with_mistakes(labels, setting.shared)
    return labels, with_mistakes(shared, setting.own), with_mistakes(shared, setting.own * better)


def differences(setting: Setting, pairs: int, seed: int, better: float = 1.0) -> Iterator[Difference]:
    rng, metric = np.random.default_rng(seed), METRICS[setting.metric]
    for n in range(pairs):
        labels, before, after = pair(setting, rng, better)
        yield paired(labels, before, after, Evaluation(metric, len(setting.shares), RESAMPLES, n))


def main(pairs: int, seed: int) -> None:
    for setting in SETTINGS:
        results = list(differences(setting, pairs, seed))
        verdicts = np.mean([d.is_significant for d in results])
        choices = np.mean([d.is_better for d in results])
        power = np.mean([d.is_significant and d.value > 0 for d in differences(setting, pairs // 5, seed + 1, 0.5)])
        print(
            f"RESULT: {setting.name}: significant {verdicts:.3f} (claimed 0.05), chosen {choices:.3f} (claimed 0.16), "
            f"power {power:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*(int(value) for value in (sys.argv[1:] + ["1000", "0"][len(sys.argv) - 1 :])))
